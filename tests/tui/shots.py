"""Draw canned meshes as pictures to look at: ``python -m tests.tui.shots OUT [NAME ...]`` (needs rsvg-convert)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.tui.pictures import PICTURES, Picture


def to_png(svg: Path) -> None:
    """rsvg drops leading no-break spaces; with preserved plain ones the picture is what a browser shows."""
    text = svg.read_text().replace("&#160;", " ").replace("<text ", '<text xml:space="preserve" ')
    subprocess.run(["rsvg-convert", "-o", str(svg.with_suffix(".png"))], input=text.encode(), check=True)


async def draw(picture: Picture) -> str:
    app = picture.app()
    async with app.run_test(size=picture.size) as pilot:
        await picture.prepare(pilot)
        return app.export_screenshot(title="")


def main(out: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        if not wanted or any(picture.name.startswith(word) for word in wanted):
            path = out / f"{picture.name}.svg"
            path.write_text(asyncio.run(draw(picture)))
            to_png(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
