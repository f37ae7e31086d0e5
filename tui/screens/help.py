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
        (" + proven ", "good"),
        ("learned from real calls   ", "dim"),
        ("? unsampled ", "accent"),
        ("only a prior", "dim"),
    ),
    line(
        (" ~ stale ", "warn"),
        ("not measured for a while   ", "dim"),
        ("v decayed ", "dim"),
        ("as good as forgotten", "dim"),
    ),
    line(
        (" x not now ", "dim"),
        ("remembered, no candidate in this topology   ", "dim"),
        ("* ", "accent"),
        ("next scout", "dim"),
    ),
    line(
        (" calls: ", "dim"),
        "E exploit  S scout  P pinned  G greedy-fallback  . running  - cancelled  ",
        ("x failed", "bad"),
    ),
)


def binding_lines(bindings: Sequence[Binding], width: int) -> list[Line]:
    """``key  what it does``, in two columns where there is room."""
    pairs: list[Line] = []
    for binding in bindings:
        keys = ", ".join(key_name(key) for key in binding.key.split(","))
        pairs.append(line("  ", *fit(((binding.key_display or keys, "key"),), 15), (binding.description, "")))
    if width < 76:
        return pairs
    half = (len(pairs) + 1) // 2
    right = [*pairs[half:], *([()] * (half * 2 - len(pairs)))]
    return [(*fit(a, width // 2), *b) for a, b in zip(pairs[:half], right, strict=True)]


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
        width = max(1, block.size.width)
        said: list[Line] = [ruler("keys", width, "esc back")]
        for title, bindings in self._sections:
            said += [(), line((f" {title}", "title")), *binding_lines(bindings, width)]
        said += [(), line((" Signs", "title")), *SIGNS]
        block.put(said)

    def action_back(self) -> None:
        self.dismiss()
