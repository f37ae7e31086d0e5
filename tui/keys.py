"""Which keys work where: a view's own come before those of everywhere. What help and the palette list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.binding import Binding
from textual.dom import DOMNode


def bindings_of(node: DOMNode) -> list[Binding]:
    """The bindings of a widget's own classes, outermost class last, in the order they are written."""
    found: list[Binding] = []
    for kind in type(node).__mro__:
        if kind.__module__.startswith("tui."):
            found += [binding for binding in vars(kind).get("BINDINGS", ()) if isinstance(binding, Binding)]
    return found


def working(everywhere: DOMNode, own: Sequence[DOMNode]) -> tuple[list[Binding], list[Binding]]:
    """The view's own bindings, and those of everywhere whose keys the view does not take."""
    mine = [binding for node in own for binding in bindings_of(node)]
    taken = _keys(mine)
    return mine, [binding for binding in bindings_of(everywhere) if not _keys([binding]) <= taken]


def commands(everywhere: DOMNode, view: DOMNode) -> Iterator[tuple[DOMNode, Binding, str]]:
    """Every action with the node it is run on and the key that runs it here, in words."""
    free = working(everywhere, [view])[1]
    for node in (everywhere, view):
        for binding in bindings_of(node):
            has_key = node is view or binding in free
            yield node, binding, f"key {binding.key_display or binding.key}" if has_key else "no key in this view"


def _keys(bindings: Sequence[Binding]) -> set[str]:
    return {key for binding in bindings for key in binding.key.split(",")}
