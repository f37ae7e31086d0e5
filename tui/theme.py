"""Colours: one theme of our own; every other is Textual's. Nothing is told by colour alone."""

from __future__ import annotations

from textual.theme import Theme

MESHNET = Theme(
    name="meshnet",
    primary="#7aa2f7",
    secondary="#9d7cd8",
    accent="#7dcfff",
    foreground="#c8d0e0",
    background="#12151c",
    surface="#161a23",
    panel="#1d2230",
    success="#8fc77f",
    warning="#e0af68",
    error="#f7768e",
    dark=True,
    variables={"input-cursor-text-style": "reverse", "border": "#39415a"},
)
CYCLE = ("meshnet", "ansi-dark", "ansi-light", "textual-dark", "textual-light", "nord", "gruvbox", "solarized-light")
"""What ``T`` goes through; the palette has all."""
