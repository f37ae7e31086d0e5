"""``meshnet routes replay``: what another policy would have earned on the decisions that a tracker logged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from meshnet.cli.status import print_json
from meshnet.cli.terminal import console, error_console, visible
from meshnet.domain import decision_log
from meshnet.domain.decision_log import FILE_ENDING, OLDER_ENDING, DecisionRow, Estimate
from meshnet.domain.errors import InvalidRequest, NotFound
from meshnet.domain.routing import MAX_ALPHA, RoutingConfig
from meshnet.weights.places import state_root

FEW_ROWS = 30.0
"""Effective decisions under which an interval says little."""
_DEFAULTS = RoutingConfig()


def replay(
    policy: Annotated[str, typer.Option(help="Whose earnings to estimate: adr, hop, greedy, eps, thompson, …")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only decisions for this model.")] = None,
    log: Annotated[Path | None, typer.Option(help="The log. Default: that of this home's tracker.")] = None,
    explore_share: Annotated[float, typer.Option(min=0, max=1, help="For adr.")] = _DEFAULTS.explore_share,
    weight_alpha: Annotated[float, typer.Option(min=0, max=MAX_ALPHA, help="For adr.")] = _DEFAULTS.weight_alpha,
    as_json: Annotated[bool, typer.Option("--json", help="The figures.")] = False,
) -> None:
    """Estimate from the tracker's decision log what another policy would have earned.

    Logged outcomes are weighed by how much likelier the other policy takes the same route. It can only be asked about
    candidates that were logged; few effective decisions mean that the two policies seldom agree.

    \b
    Examples:
      meshnet routes replay --policy hop
      meshnet routes replay --policy adr --explore-share 0.05 --weight-alpha 8
    """
    path = log or find_log(state_root(os.environ) / "trackers")
    config = RoutingConfig(explore_share=explore_share, weight_alpha=weight_alpha)
    rows = [row for row in read_rows(path) if model is None or row.model_key == model]
    found = decision_log.replay(rows, policy, config)
    if as_json:
        print_json(found)
        return
    console().print(describe(found), soft_wrap=True)
    if found.effective_rows < FEW_ROWS:
        words = f"note: that is worth {found.effective_rows:.0f} decisions of its own: too few to lean on."
        error_console().print(words, soft_wrap=True)


def find_log(folder: Path) -> Path:
    """The one log there is. Raises NotFound when there is none, InvalidRequest naming them when there are several."""
    found = sorted(folder.glob(f"*{FILE_ENDING}"))
    if not found:
        raise NotFound(f"No tracker logged decisions in {folder}. Give the file: --log FILE")
    if len(found) > 1:
        raise InvalidRequest(f"Several logs in {folder}: {', '.join(p.name for p in found)}. Say which: --log FILE")
    return found[0]


def read_rows(path: Path) -> Iterator[DecisionRow]:
    """Of the ring's older half, then the younger. A line cut short by a crash is left out. Raises NotFound."""
    halves = [half for half in (path.with_name(path.name + OLDER_ENDING), path) if half.is_file()]
    if not halves:
        raise NotFound(f"There is no decision log {path}.")
    decoder = msgspec.json.Decoder(DecisionRow)
    for half in halves:
        with half.open("rb") as lines:
            for line in lines:
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue


def describe(found: Estimate) -> str:
    """``hop would have earned 18.2 tokens/s a request (95 %: 17.1 to 19.3). …``"""
    return (
        f"{visible(found.policy)} would have earned {found.tokens_per_s:.1f} tokens/s a request "
        f"(95 %: {found.low:.1f} to {found.high:.1f}).\n"
        f"{found.logged_tokens_per_s:.1f} were earned on the same {found.rows} decisions; "
        f"they are worth {found.effective_rows:.0f} of its own."
    )
