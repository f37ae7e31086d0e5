"""``meshnet relays``: the relays of this home, who sits at them, and what they carry."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from meshnet.cli import processes
from meshnet.cli.connect import open_client
from meshnet.cli.home import home_of
from meshnet.cli.status import print_json
from meshnet.cli.tables import plain_table
from meshnet.cli.terminal import console, format_age, format_bytes, visible
from meshnet.client.relay import RelayClient
from meshnet.domain.ids import FINGERPRINT_CHARS
from meshnet.wire.relay import SeatMessage


def relays(
    as_json: Annotated[bool, typer.Option("--json", help="By relay, what GET /v1/seats answers.")] = False,
) -> None:
    """List the relays that run here, and their nodes."""
    urls = {record.name: record.url for record in processes.living(home_of(os.environ)) if record.kind == "relay"}
    found = asyncio.run(_seats(urls))
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No relay runs here. Start one with: meshnet up relay")
        return
    table = plain_table("relay", "node", "wallet", "address", "for>", "links>", "bytes>")
    for name, seats in found.items():
        for seat in seats:
            age, carried = format_age(seat.since_s), format_bytes(seat.bytes)
            cells = (name, visible(seat.name), seat.wallet[:FINGERPRINT_CHARS], visible(seat.address), age)
            table.add_row(*cells, str(seat.links), carried)
        if not seats:
            table.add_row(name, "nobody", "", "", "", "", "")
    out.print(table)


async def _seats(urls: dict[str, str]) -> dict[str, tuple[SeatMessage, ...]]:
    async with open_client(os.environ) as http:
        return {name: await RelayClient(http, url).seats() for name, url in urls.items() if url}
