"""Every key that works here, in words; made from the bindings themselves, so it cannot lie."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from tui.draw.spans import Line, fit, line, ruler
from tui.widgets.lines import Lines

SIGNS: tuple[Line, ...] = (
    line(
        (" + good, proven   ", "good"),
        ("? unsampled ", "accent"),
        ("only a prior   ", "dim"),
        ("* ", "accent"),
        ("next scout   ", "dim"),
        ("o loading", "accent"),
    ),
    line(
        (" ~ suspect, stale ", "warn"),
        ("not heard or measured for a while   ", "dim"),
        ("v draining, decayed ", "dim"),
        ("fading", "dim"),
    ),
    line(
        (" ! wrong: ejected, a problem ", "bad"),
        ("(n goes there)   ", "dim"),
        ("x failed, ", "bad"),
        ("gone, or no route now", "dim"),
    ),
    line(
        (" calls: ", "dim"),
        "E exploit  S scout  P pinned  G greedy-fallback  . running  - cancelled",
    ),
)
"""Every sign that stands beside a word or for one."""
VIEW_KEYS = [str(number) for number in range(1, 8)]


def binding_lines(bindings: Sequence[Binding], width: int) -> list[Line]:
    """``key  what it does``, in two columns where there is room."""
    views = [binding.description for binding in bindings if binding.key in VIEW_KEYS]
    pairs: list[Line] = [_pair(f"1-{len(views)}", f"{views[0]} to {views[-1]}")] if views else []
    for binding in bindings:
        if binding.key not in VIEW_KEYS:
            keys = ", ".join(key_name(key) for key in binding.key.split(","))
            pairs.append(_pair(binding.key_display or keys, binding.description))
    if width < 76:
        return pairs
    half = (len(pairs) + 1) // 2
    right = [*pairs[half:], *([()] * (half * 2 - len(pairs)))]
    return [(*fit(a, width // 2), *b) for a, b in zip(pairs[:half], right, strict=True)]


def _pair(keys: str, words: str) -> Line:
    return line("  ", *fit(((keys, "key"),), 15), (words, ""))


NAMES = {
    "slash": "/",
    "question_mark": "?",
    "colon": ":",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
}


def key_name(key: str) -> str:
    """A key as it is written on the keyboard."""
    return NAMES.get(key, key)


class HelpScreen(ModalScreen[None]):
    """``sections`` are (title, bindings)."""

    BINDINGS = [Binding("escape,q,question_mark", "back", "Back", id="help.back")]

    def __init__(self, sections: Sequence[tuple[str, Sequence[Binding]]]) -> None:
        super().__init__()
        self._sections = tuple(sections)

    def compose(self) -> ComposeResult:
        yield Lines(id="help", can_focus=True)

    def on_mount(self) -> None:
        self.query_one("#help").focus()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        block = self.query_one("#help", Lines)
        width, height = max(1, block.size.width), block.size.height
        parts = [(title, binding_lines(bindings, width)) for title, bindings in self._sections]
        parts.append(("Signs", list(SIGNS)))
        airy = 1 + sum(len(lines) + 2 for _, lines in parts) <= height
        said: list[Line] = []
        for title, lines in parts:
            said += [*([()] if airy else []), line((f" {title}", "title")), *lines]
        tail = "esc back" if len(said) < height else "up down scroll, esc back"
        block.put([ruler("keys", width, tail), *said])

    def action_back(self) -> None:
        self.dismiss()
