"""docs/console.md tells the truth: every binding is in it, and every id in it is a binding."""

from __future__ import annotations

import re
from pathlib import Path

from textual.binding import Binding

from tui.app import ConsoleApp
from tui.screens.details import DetailsScreen
from tui.screens.help import HelpScreen, key_name
from tui.screens.main import MainScreen
from tui.screens.menu import MenuScreen
from tui.views.chat_view import ChatView
from tui.views.routing_view import RoutingView
from tui.views.table_view import TableView
from tui.widgets.lines import Lines
from tui.widgets.live_table import LiveTable

DOCS = Path(__file__).resolve().parents[2] / "docs"
OWNERS = (
    ConsoleApp, MainScreen, TableView, RoutingView, ChatView, LiveTable, Lines, DetailsScreen, HelpScreen, MenuScreen,
)  # fmt: skip


def bindings() -> list[Binding]:
    return [binding for owner in OWNERS for binding in vars(owner)["BINDINGS"]]


def rows() -> list[str]:
    return [line for line in (DOCS / "console.md").read_text("utf-8").splitlines() if line.startswith("|")]


def test_every_binding_is_documented_with_its_keys() -> None:
    missing = []
    for binding in bindings():
        row = next((row for row in rows() if f"`{binding.id}`" in row), "")
        for key in binding.key.split(","):
            names = {key, key_name(key), binding.key_display or key}
            in_range = "`1` … `7`" in row and key in "1234567"
            if not in_range and not any(f"`{name}`" in row for name in names):
                missing.append(f"{binding.id}: {key}")
    assert not missing


def test_every_documented_id_exists_once() -> None:
    documented = re.findall(r"`((?:everywhere|table|routing|chat|details|help|menu|lines)\.\w+)`", "\n".join(rows()))
    known = [binding.id for binding in bindings()]
    assert sorted(documented) == sorted(known, key=str)
    assert len(set(known)) == len(known)


def test_every_linked_file_exists() -> None:
    text = (DOCS / "console.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert not [link for link in links if not (DOCS / link).exists()]
