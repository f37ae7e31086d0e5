"""Who is blamed for silence, case by case."""

from __future__ import annotations

import pytest

from daemons.node.culprit import blame
from meshnet.wire.messages import HopMessage, Probed

HOPS = tuple(HopMessage(f"{name}.0-1", "http://127.0.0.1:1", n, n) for n, name in enumerate("abc"))


def hop(received: int, sent: int, *, known: bool = True, queued: bool = False, computing: bool = False) -> Probed:
    return Probed(session=1, attempt=0, known=known, received=received, sent=sent, queued=queued, computing=computing)


IDLE = hop(9, 9)


@pytest.mark.parametrize(
    ("answers", "culprit", "code"),
    [
        ((hop(10, 10), None, None), "b.0-1", "silent"),
        ((None, hop(10, 10), IDLE), "a.0-1", "silent"),
        ((hop(10, 10), hop(0, 0, known=False), IDLE), "b.0-1", "session_lost"),
        ((hop(10, 10), hop(10, 9), IDLE), "b.0-1", "stalled"),
        ((hop(10, 9), IDLE, IDLE), "a.0-1", "stalled"),
        ((hop(10, 10), IDLE, IDLE), "b.0-1", "edge"),
        ((hop(10, 10), hop(10, 10), IDLE), "c.0-1", "edge"),
        ((hop(10, 10), hop(10, 10), hop(10, 10)), "c.0-1", "edge"),
    ],
)
def test_the_first_that_does_nothing_is_blamed(answers: tuple[Probed | None, ...], culprit: str, code: str) -> None:
    found = blame(HOPS, answers, awaited=10)
    assert found is not None
    assert (found.culprit, found.code) == (culprit, code)


@pytest.mark.parametrize(
    "answers",
    [
        (hop(10, 9, computing=True), IDLE, IDLE),
        (hop(10, 10), hop(10, 9, queued=True), None),
        (hop(10, 10), hop(10, 10), hop(10, 9, computing=True)),
    ],
)
def test_who_queues_or_computes_is_waited_for(answers: tuple[Probed | None, ...]) -> None:
    assert blame(HOPS, answers, awaited=10) is None
