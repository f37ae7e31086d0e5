"""What an app under a pilot shows."""

from __future__ import annotations

from tui.app import ConsoleApp


def text_of(app: ConsoleApp) -> str:
    """Everything on the screen, as text."""
    strips = app.screen._compositor.render_strips(app.screen.size)
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)
