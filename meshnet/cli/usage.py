"""``meshnet usage``: the ledger of work. Who computed how many layers for how many tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.status import print_json
from meshnet.cli.tables import plain_table
from meshnet.cli.terminal import console, visible
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import FINGERPRINT_CHARS, short_node_id
from meshnet.wire.demand import UsageResponse, UsageRow, UsageTotal

CALL_CHARS = 8
"""Of a call id: enough to find it on the wall, and two tables fit 80 columns."""


def usage(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")] = None,
    limit: Annotated[int, typer.Option("--rows", min=0, max=500, help="Show the last rows too, one a hop.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="What GET /v1/usage answers.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """Show who did how much work. A work unit is one layer for one token; nothing is charged."""

    async def question(client: TrackerClient) -> tuple[UsageResponse, dict[str, str]]:
        return await client.usage(model, limit), {n.wallet: n.name for n in (await client.nodes()).nodes}

    answer, names = ask(find_tracker(tracker, os.environ, Path.cwd()), question)
    if as_json:
        print_json(answer)
        return
    out = console()
    if not answer.totals:
        out.print("No work is written down yet. Ask something with: meshnet chat")
        return
    out.print(totals_table(answer.totals, names))
    if answer.rows:
        out.print()
        out.print(rows_table(answer.rows))


def totals_table(totals: Sequence[UsageTotal], names: Mapping[str, str]) -> Table:
    """Most work first; ``names`` are those of the nodes that are here, by wallet."""
    table = plain_table("node", "wallet", "model", "calls>", "tokens>", "again>", "work units>", "share>")
    whole = sum(total.work_units for total in totals) or 1
    for total in totals:
        table.add_row(
            visible(names.get(total.wallet, "(gone)"))[:12],
            visible(total.wallet[:FINGERPRINT_CHARS]),
            visible(total.model_key),
            f"{total.calls}",
            f"{total.tokens}",
            f"{total.replayed_tokens}",
            f"{total.work_units}",
            f"{total.work_units / whole:.0%}",
        )
    return table


def rows_table(rows: Sequence[UsageRow]) -> Table:
    """Newest first."""
    table = plain_table("call", "try>", "hop>", "node", "layers", "tokens>", "again>", "work>", "outcome")
    for row in rows:
        table.add_row(
            visible(row.call_id.removeprefix("call-")[:CALL_CHARS]),
            f"{row.attempt}",
            f"{row.hop}",
            visible(short_node_id(row.node_id)),
            f"{row.start_layer}-{row.end_layer}",
            f"{row.tokens}",
            f"{row.replayed_tokens}",
            f"{row.work_units}",
            visible(row.outcome),
        )
    return table
