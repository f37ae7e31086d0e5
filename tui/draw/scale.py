"""Layers over cells: which layers a cell of the map stands for, and the numbers above it."""

from __future__ import annotations

from tui.draw.spans import Line


def groups(n_layers: int, width: int) -> list[range]:
    """Layers cut into at most ``width`` equal groups, one cell each; one layer a cell where there is room, and then
    as many whole cells a layer as fit."""
    if n_layers <= 0 or width <= 0:
        return []
    if n_layers <= width:
        each = width // n_layers
        return [range(layer, layer + 1) for layer in range(n_layers) for _ in range(each)]
    return [
        range(n_layers * i // width, max(n_layers * i // width + 1, n_layers * (i + 1) // width)) for i in range(width)
    ]


def scale(n_layers: int, width: int) -> Line:
    """Layer numbers over the map, as many as fit."""
    text = [" "] * width
    cells = groups(n_layers, width)
    last = -1
    for x, group in enumerate(cells):
        label = str(group.start)
        new = x == 0 or cells[x - 1].start != group.start
        if new and x > last and x + len(label) <= width:
            text[x : x + len(label)] = label
            last = x + max(len(label), 4)
    return (("".join(text), "dim"),)
