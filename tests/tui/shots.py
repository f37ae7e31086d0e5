"""Draw canned meshes as pictures to look at: ``python -m tests.tui.shots OUT [NAME ...]`` (needs chromium)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.tui.pictures import PICTURES, Picture


def to_png(svg: Path) -> None:
    """As a browser shows it: other renderers collapse the spaces of Rich's SVGs."""
    wide = "-120" in svg.stem
    size = "1490,1060" if wide else "1010,660"
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
    subprocess.run(
        [*words, f"--screenshot={svg.with_suffix('.png')}", svg.resolve().as_uri()], check=True, capture_output=True
    )


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
