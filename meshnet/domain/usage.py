"""The usage ledger: who did how much of a call, in work units (layers x tokens).

Owns what a row means and what must hold of the rows of a call. Keeping them is the tracker's store's.

A call's tokens are its prompt and the tokens produced, each counted once, however many attempts it took: an attempt
after a failure prefills again what was there, and that is ``replayed_tokens``, written down but no work unit. So the
work units of a call sum to the model's layers x the call's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from meshnet.domain.errors import Conflict, InvalidRequest
from meshnet.domain.ids import CallId, ModelKey, NodeId, Wallet, parse_node_id
from meshnet.domain.routes import Route

PRICE_MICRO_UNITS = 0
"""Price of a work unit in millionths: whole numbers, so that sums are exact. Nothing is charged."""

AttemptOutcome = Literal["complete", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class TokenShare:
    """What one attempt adds: ``tokens`` new to the call (its prompt, if it is the first to answer, and what it
    produced), ``replayed_tokens`` prefilled again."""

    tokens: int
    replayed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One hop's part in one attempt; unique by (call_id, hop, attempt). Layers are those executed, inclusive."""

    call_id: CallId
    attempt: int
    hop: int
    """0 is the head."""
    model_key: ModelKey
    node_id: NodeId
    wallet: Wallet
    start_layer: int
    end_layer: int
    tokens: int
    replayed_tokens: int
    outcome: AttemptOutcome
    price_micro_units: int = PRICE_MICRO_UNITS

    @property
    def key(self) -> tuple[CallId, int, int]:
        return self.call_id, self.hop, self.attempt

    @property
    def layers(self) -> int:
        return self.end_layer - self.start_layer + 1

    @property
    def work_units(self) -> int:
        return self.layers * self.tokens


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Sums of one wallet in one model."""

    wallet: Wallet
    model_key: ModelKey
    calls: int
    tokens: int
    replayed_tokens: int
    work_units: int
    price_micro_units: int


def token_shares(prompt_tokens: int, produced: Sequence[int]) -> tuple[TokenShare, ...]:
    """Tokens of each attempt of a call, ``produced`` being what each produced, in order.

    The prompt belongs to the first attempt that produced a token: only then is its prefill proven. A call that
    produced nothing has no work. Raises InvalidRequest for negative counts.
    """
    if prompt_tokens < 0 or any(count < 0 for count in produced):
        raise InvalidRequest(
            f"a call of {prompt_tokens} prompt tokens and {list(produced)} produced: none may be negative"
        )
    shares: list[TokenShare] = []
    known = 0
    for count in produced:
        new = count + (prompt_tokens if count and not known else 0)
        shares.append(TokenShare(new, known if count else 0))
        known += new
    return tuple(shares)


def usage_rows(
    call_id: CallId, attempt: int, route: Route, share: TokenShare, outcome: AttemptOutcome
) -> tuple[UsageRow, ...]:
    """One row a hop, the head included; their spans abut because a Route's do."""
    return tuple(
        UsageRow(
            call_id,
            attempt,
            index,
            route.model_key,
            hop.node_id,
            parse_node_id(hop.node_id)[0],
            hop.start_layer,
            hop.end_layer,
            share.tokens,
            share.replayed_tokens,
            outcome,
        )
        for index, hop in enumerate(route.hops)
    )


def check_call(rows: Iterable[UsageRow], n_layers: int) -> int:
    """Work units of one call, after checking that in every attempt hops are numbered from the head, spans start at
    layer 0, abut and end at the last layer, and all carry the same tokens. Raises Conflict naming what does not fit."""
    rows = sorted(rows, key=lambda row: (row.attempt, row.hop))
    if len({row.call_id for row in rows}) > 1:
        raise Conflict(f"rows of {len({row.call_id for row in rows})} calls: a ledger is checked call by call")
    if len({row.key for row in rows}) != len(rows):
        raise Conflict(f"a hop of {rows[0].call_id} stands twice in the ledger")
    for attempt in sorted({row.attempt for row in rows}):
        _check_attempt([row for row in rows if row.attempt == attempt], n_layers)
    return sum(row.work_units for row in rows)


def usage_totals(rows: Iterable[UsageRow]) -> tuple[UsageTotal, ...]:
    """Sums by wallet and model, most work first. A row given twice counts once."""
    groups: dict[tuple[Wallet, ModelKey], list[UsageRow]] = {}
    for row in {row.key: row for row in rows}.values():
        groups.setdefault((row.wallet, row.model_key), []).append(row)
    totals = [
        UsageTotal(
            wallet,
            model_key,
            len({row.call_id for row in group}),
            sum(row.tokens for row in group),
            sum(row.replayed_tokens for row in group),
            sum(row.work_units for row in group),
            sum(row.work_units * row.price_micro_units for row in group),
        )
        for (wallet, model_key), group in groups.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.work_units, total.wallet, total.model_key)))


def _check_attempt(rows: Sequence[UsageRow], n_layers: int) -> None:
    where = f"{rows[0].call_id} attempt {rows[0].attempt}"
    expected = 0
    for index, row in enumerate(rows):
        if row.hop != index:
            raise Conflict(f"{where}: hop {index} is missing from the ledger")
        if row.start_layer != expected or row.end_layer < row.start_layer:
            raise Conflict(
                f"{where}: hop {index} is {row.start_layer}-{row.end_layer}, but layer {expected} comes next"
            )
        if (row.tokens, row.replayed_tokens) != (rows[0].tokens, rows[0].replayed_tokens):
            raise Conflict(f"{where}: hop {index} has {row.tokens} tokens, the head {rows[0].tokens}")
        expected = row.end_layer + 1
    if expected != n_layers:
        raise Conflict(f"{where}: the ledger ends at layer {expected - 1} of {n_layers}")
