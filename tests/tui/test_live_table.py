"""The table under the operator's fingers: the cursor is on a row's key, and only what changed is repainted."""

from __future__ import annotations

import random

from textual.app import App, ComposeResult
from textual.geometry import Region

from tui.draw.spans import line
from tui.draw.table import Column, Row
from tui.widgets.live_table import LiveTable

COLUMNS = (Column("name", "NAME", 10, grow=True), Column("value", "VALUE", 8, right=True))


class Recording(LiveTable):
    """Remembers which regions it was asked to repaint."""

    def __init__(self) -> None:
        super().__init__(COLUMNS)
        self.repainted: list[Region | None] = []

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Recording:
        if hasattr(self, "repainted"):
            self.repainted += list(regions) or [None]
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)


class OneTable(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def compose(self) -> ComposeResult:
        yield Recording()

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        self.opened.append(event.key)


def rows(names: list[str], value: str = "1") -> list[Row]:
    return [Row(name, {"name": line(name), "value": line(value)}) for name in names]


NAMES = [f"row-{i:02d}" for i in range(40)]


async def test_the_cursor_keeps_its_key_and_its_line_through_everything() -> None:
    app = OneTable()
    rng = random.Random(5)
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.focus()
        table.put(rows(NAMES))
        await pilot.press(*["down"] * 25)
        assert table.cursor_key == "row-25"
        screen_line = (table.cursor_row or 0) - table.top
        for _ in range(20):
            names = [name for name in NAMES if name == "row-25" or rng.random() < 0.7]
            names += [f"new-{rng.randrange(99)}-{i}" for i in range(rng.randrange(9))]
            rng.shuffle(names)
            table.put(rows(names))
            await pilot.pause()
            assert table.cursor_key == "row-25"
            assert table.rows[table.cursor_row or 0].key == "row-25"
        table.put(rows(NAMES))
        assert (table.cursor_row or 0) - table.top <= table.size.height - 2
        table.put(rows(["above-1", "above-2", *NAMES]))
        table.put(rows(NAMES))
        assert table.cursor_key == "row-25"
        assert screen_line >= 0


async def test_rows_inserted_above_do_not_move_the_line_under_the_cursor() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.focus()
        table.put(rows(NAMES))
        await pilot.press(*["down"] * 25)
        screen_line = (table.cursor_row or 0) - table.top
        table.put(rows(["above-1", "above-2", *NAMES]))
        assert (table.cursor_row or 0) - table.top == screen_line
        table.put(rows(NAMES[10:]))
        assert (table.cursor_row or 0) - table.top == screen_line


async def test_a_removed_row_leaves_the_cursor_at_its_place() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.focus()
        table.put(rows(NAMES[:5]))
        await pilot.press("down", "down")
        table.put(rows(["row-00", "row-01", "row-03", "row-04"]))
        assert table.cursor_key == "row-03"
        table.put([])
        assert table.cursor_key is None
        await pilot.press("down", "enter", "pagedown", "G")
        table.put(rows(["row-09"]))
        assert table.cursor_key == "row-09"
        await pilot.press("enter")
        assert app.opened == ["row-09"]


async def test_equal_rows_repaint_nothing_and_one_cell_repaints_one_cell() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.put(rows(NAMES))
        await pilot.pause()
        table.repainted.clear()
        table.put(rows(NAMES))
        assert table.repainted == []
        changed = rows(NAMES)
        changed[3] = Row("row-03", {"name": line("row-03"), "value": line("2")})
        changed[39] = Row("row-39", {"name": line("row-39"), "value": line("2")})
        table.put(changed)
        assert table.repainted == [Region(31, 4, 8, 1)]


async def test_a_style_alone_is_a_change() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.put(rows(["a"]))
        await pilot.pause()
        table.repainted.clear()
        table.put([Row("a", {"name": line(("a", "bad")), "value": line("1")})])
        assert table.repainted == [Region(1, 1, 29, 1)]


async def test_follow_keeps_the_newest_row_under_the_cursor() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)):
        table = app.query_one(Recording)
        table.put(rows(NAMES), follow=True)
        table.put(rows(["newest", *NAMES]), follow=True)
        assert (table.cursor_key, table.top) == ("newest", 0)


async def test_a_click_moves_and_a_second_one_opens() -> None:
    app = OneTable()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(Recording)
        table.put(rows(NAMES))
        await pilot.click(Recording, offset=(3, 4))
        assert (table.cursor_key, app.opened) == ("row-03", [])
        await pilot.click(Recording, offset=(3, 4))
        assert app.opened == ["row-03"]
