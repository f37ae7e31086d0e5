"""Which tracker a command speaks to, and one question to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from meshnet.cli import processes
from meshnet.cli.home import Home, home_of
from meshnet.cli.meshfile import DEFAULT_FILE, is_there, read_mesh
from meshnet.client.http import Client, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError, StartError, Unreachable
from meshnet.wire import api

T = TypeVar("T")

TRACKER_VARIABLE = "MESHNET_TRACKER"
KEY_VARIABLE = "MESHNET_API_KEY"
CA_VARIABLE = "MESHNET_CA_FILE"
BAD_ANSWER = "bad_answer"
"""The client's code for what no daemon of this version says."""


def find_tracker(flag: str | None, environ: Mapping[str, str], folder: Path) -> str:
    """The flag, else MESHNET_TRACKER, else ``[mesh] tracker`` of meshnet.toml in ``folder``, else the tracker that runs
    in this home, else the default address. Raises Unreachable when a home of its own runs none."""
    given = flag or environ.get(TRACKER_VARIABLE, "").strip()
    if given:
        return as_url(given)
    if is_there(folder / DEFAULT_FILE) and (url := read_mesh(folder / DEFAULT_FILE).tracker_url):
        return as_url(url)
    return _local(home_of(environ))


def as_url(text: str) -> str:
    """``localhost:7070`` -> ``http://localhost:7070``. Raises StartError for what can be no address."""
    url = text.strip().rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")) or len(url) > 512 or any(c.isspace() or ord(c) < 32 for c in url):
        raise StartError(f"{text!r} is no tracker's address; it looks like http://127.0.0.1:7070.")
    return url


def open_client(environ: Mapping[str, str]) -> Client:
    """The command's HTTP client, with the key of MESHNET_API_KEY and the CA of MESHNET_CA_FILE, where there are any."""
    key = environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise StartError(f"{KEY_VARIABLE} is no key: a key is one line that begins with mnk_.")
    return open_http(key, environ.get(CA_VARIABLE, "").strip())


def ask(url: str, question: Callable[[TrackerClient], Awaitable[T]]) -> T:
    """Run one question to its end. Raises what it raises."""

    async def run() -> T:
        async with open_client(os.environ) as http:
            return await question(TrackerClient(http, url))

    with strangers_named(url):
        return asyncio.run(run())


@contextlib.contextmanager
def strangers_named(url: str) -> Iterator[None]:
    """What answers as no daemon of ours does is said to be a stranger: most often the address is another program's."""
    try:
        yield
    except MeshnetError as error:
        if error.code != BAD_ANSWER and not error.message.startswith("HTTP "):
            raise
        raise MeshnetError(f"That is no meshnet tracker: {error.message} (asked at {url})", code=BAD_ANSWER) from None


def _local(home: Home) -> str:
    for record in processes.living(home):
        if record.kind == "tracker" and record.url:
            return record.url
    if home.is_default:
        return f"http://127.0.0.1:{api.DEFAULT_TRACKER_PORT}"
    raise Unreachable(f"No tracker runs in {home.state}. Start one with: meshnet up (or name one with --tracker URL).")
