"""``python -m tui``: the operator console of one tracker."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshnet.domain.errors import MeshnetError, StartError
from tui import settings as tui_settings
from tui.settings import Settings

if TYPE_CHECKING:
    from tui.app import ConsoleApp

EXIT_START = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console to its end; returns the exit code."""
    given = _parser().parse_args(argv)
    flags = {
        "tracker": given.tracker,
        "theme": given.theme,
        "mouse": given.mouse or None,
        "ascii": given.ascii or None,
        "read_only": given.read_only or None,
    }
    try:
        settings = tui_settings.load(os.environ, flags, Path(given.config) if given.config else None)
        if given.plain:
            return _plain(settings, given.once)
        _check_terminal(os.environ, sys.stdin.isatty(), sys.stdout.isatty())
        return _screen(settings)
    except MeshnetError as error:
        print(error.message, file=sys.stderr)
        return EXIT_START
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our lines is gone; so is the reason to go on. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="meshnet console", description="Watch and steer the mesh on one screen.")
    parser.add_argument(
        "--tracker", help="address of the tracker; else MESHNET_TRACKER, the home's tracker, the default"
    )
    parser.add_argument("--plain", action="store_true", help="one line per change instead of a screen")
    parser.add_argument("--once", action="store_true", help="with --plain: say what there is, and end")
    parser.add_argument("--read-only", action="store_true", help="no chat, no race, no file is written")
    parser.add_argument("--theme", help="name of a theme; ansi-dark is the default over SSH")
    parser.add_argument("--mouse", action="store_true", help="take the mouse (M switches it)")
    parser.add_argument("--ascii", action="store_true", help="only ASCII signs, as without a UTF-8 locale")
    parser.add_argument("--config", help="TOML file with a [console] table")
    return parser


def _credentials(environ: Mapping[str, str]) -> tuple[str, str]:
    """API key and CA file, where the mesh asks for them."""
    return environ.get("MESHNET_API_KEY", "").strip(), environ.get("MESHNET_CA_FILE", "").strip()


def _check_terminal(environ: Mapping[str, str], reads: bool, writes: bool) -> None:
    """Raises StartError with one line where no screen can be drawn."""
    if not (reads and writes):
        raise StartError("The console needs a terminal. Without one use: meshnet console --plain (over ssh: ssh -t).")
    if environ.get("TERM", "dumb") in ("dumb", ""):
        raise StartError("TERM is dumb: this terminal cannot draw a screen. Use: meshnet console --plain.")


def _plain(settings: Settings, once: bool) -> int:
    from tui.plain import follow, printer
    from tui.poller import Poller
    from tui.tracker_source import TrackerSource

    async def run() -> int:
        source = TrackerSource(settings.tracker, time.time, *_credentials(os.environ))
        try:
            only_ascii = bool(settings.ascii) or "utf" not in (sys.stdout.encoding or "").lower()
            say = printer(sys.stdout.write, sys.stdout.flush, only_ascii)
            return await follow(Poller(source, time.monotonic), say, time.time, once)
        finally:
            await source.close()

    return asyncio.run(run())


def _screen(settings: Settings) -> int:
    from tui.app import ConsoleApp
    from tui.tracker_source import TrackerSource

    return run_screen(
        lambda: ConsoleApp(TrackerSource(settings.tracker, time.time, *_credentials(os.environ)), settings)
    )


def run_screen(make: Callable[[], ConsoleApp]) -> int:
    """Run the app that ``make`` gives, inside the loop it will live in; SIGTERM and SIGHUP restore the terminal."""

    async def run() -> int:
        app = make()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, app.leave_by_signal, int(number))
        await app.run_async(mouse=app.settings.mouse)
        return app.return_code or 0

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
