"""The usage ledger: each ended call's work by hop, summed by wallet and model, kept in the database.

What a row means is ``domain.usage``'s. Sums stand in memory, so that showing them never waits for the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from daemons.tracker.calls import Call, Try
from daemons.tracker.store import SHOWN_USAGE_ROWS, Database, Row, Saved
from meshnet.domain import usage as domain
from meshnet.domain.usage import AttemptOutcome
from meshnet.wire.demand import UsageResponse, UsageRow, UsageTotal


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    tokens: int = 0
    replayed_tokens: int = 0
    work_units: int = 0
    price_micro_units: int = 0


class UsageLedger:
    """One owner. ``database`` None: in memory only."""

    def __init__(self, database: Database | None, saved: Saved, now_wall: Callable[[], float]) -> None:
        self._database = database
        self._now_wall = now_wall
        self._sums: dict[tuple[str, str], _Sum] = {(row[0], row[1]): _Sum(*row[2:]) for row in saved.usage_totals}
        self._rows: deque[UsageRow] = deque((_shown(row) for row in saved.usage), maxlen=SHOWN_USAGE_ROWS)
        """Newest first."""

    def record(self, call: Call) -> None:
        """Write down an ended call, once."""
        rows = rows_of(call)
        if not rows:
            return
        at = round(self._now_wall(), 3)
        self._add(rows)
        stored: list[Row] = [_stored(row, at) for row in rows]
        self._rows.extendleft(_shown(row) for row in reversed(stored))
        if self._database is not None:
            self._database.keep_usage(stored)

    def response(self, model_key: str | None, limit: int) -> UsageResponse:
        totals = sorted(self._sums.items(), key=lambda item: (-item[1].work_units, item[0]))
        rows = [row for row in self._rows if model_key in (None, row.model_key)]
        return UsageResponse(
            totals=tuple(
                UsageTotal(
                    wallet=wallet,
                    model_key=model,
                    calls=total.calls,
                    tokens=total.tokens,
                    replayed_tokens=total.replayed_tokens,
                    work_units=total.work_units,
                    price_micro_units=total.price_micro_units,
                )
                for (wallet, model), total in totals
                if model_key in (None, model)
            ),
            rows=tuple(rows[:limit]),
        )

    def _add(self, rows: Iterable[domain.UsageRow]) -> None:
        for total in domain.usage_totals(rows):
            mine = self._sums.setdefault((total.wallet, total.model_key), _Sum())
            mine.calls += total.calls
            mine.tokens += total.tokens
            mine.replayed_tokens += total.replayed_tokens
            mine.work_units += total.work_units
            mine.price_micro_units += total.price_micro_units


def rows_of(call: Call) -> list[domain.UsageRow]:
    """One row for each hop of each attempt that produced something."""
    prompt_tokens = call.finished.prompt_tokens if call.finished else len(call.prompt_ids or ())
    shares = domain.token_shares(prompt_tokens, [attempt.tokens for attempt in call.tries])
    return [
        row
        for attempt, share in zip(call.tries, shares, strict=True)
        if share.tokens
        for row in domain.usage_rows(
            call.call_id, attempt.number, attempt.plan.decision.route, share, _outcome(attempt)
        )
    ]


def _outcome(attempt: Try) -> AttemptOutcome:
    if attempt.cancelled:
        return "cancelled"
    return "complete" if attempt.ended is not None and attempt.ended.finished is not None else "failed"


def _stored(row: domain.UsageRow, at: float) -> Row:
    return (
        row.call_id,
        row.hop,
        row.attempt,
        at,
        row.model_key,
        row.node_id,
        row.wallet,
        row.start_layer,
        row.end_layer,
        row.tokens,
        row.replayed_tokens,
        row.work_units,
        row.price_micro_units,
        row.outcome,
    )


def _shown(row: Sequence[object]) -> UsageRow:
    names = ("call_id", "hop", "attempt", "at", "model_key", "node_id", "wallet", "start_layer", "end_layer", "tokens")
    names += ("replayed_tokens", "work_units", "price_micro_units", "outcome")
    return UsageRow(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]
