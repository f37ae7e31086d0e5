"""Draw canned meshes as SVG to look at: ``python -m tests.tui.shots OUT``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.tui import canned
from tests.tui.apps import console


async def shoot(
    out: Path, name: str, size: tuple[int, int], keys: list[str], snapshot: object = None, **more: object
) -> None:
    app = console(snapshot or canned.mesh(), **more)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        svg = out / f"{name}.svg"
        svg.write_text(app.export_screenshot(title=""))
    # rsvg drops leading no-break spaces; with preserved plain ones the picture is what a browser shows.
    text = svg.read_text().replace("&#160;", " ").replace("<text ", '<text xml:space="preserve" ')
    svg.with_suffix(".view.svg").write_text(text)
    subprocess.run(["rsvg-convert", "-o", str(svg.with_suffix(".png")), str(svg.with_suffix(".view.svg"))], check=True)


async def main(out: Path, only: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for size in ((80, 24), (120, 40)):
        for name, keys in (
            ("routing", []),
            ("calls", ["2"]),
            ("nodes", ["3"]),
            ("layers", ["4"]),
            ("models", ["5"]),
            ("chat", ["6"]),
            ("events", ["7"]),
        ):
            if not only or name in only:
                await shoot(out, f"{name}-{size[0]}", size, keys)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
