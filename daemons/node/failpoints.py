"""Failures on order, for tests: ``MESHNET_FAIL=token=5:exit`` breaks this node at its fifth token, once.

Where: ``open`` (a session is opened), ``prefill`` (the first rows of a prompt), ``token=N`` (the step that makes a
session's N-th token here). What: ``exit`` (as kill -9), ``stop`` (as SIGSTOP), ``oom``, ``nan``, ``error``. Honoured
only with ``MESHNET_TESTING=1``.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemons.node.wrapped import WrappedEngine
from meshnet.domain.engine import SessionKey, SessionPlan, ShardEngine, StepItem, StepResult
from meshnet.domain.errors import NodeFailed, StartError

log = logging.getLogger(__name__)

VARIABLE, SWITCH = "MESHNET_FAIL", "MESHNET_TESTING"
ACTIONS = ("exit", "stop", "oom", "nan", "error")


@dataclass(frozen=True, slots=True)
class FailPoint:
    """``token`` is 0 unless ``where`` is "token"."""

    where: str
    action: str
    token: int = 0


def fail_point_of(environ: Mapping[str, str]) -> FailPoint | None:
    """What the environment orders, if it may. Raises StartError for an order that is none."""
    text = environ.get(VARIABLE, "")
    if not text or environ.get(SWITCH) != "1":
        return None
    place, _, action = text.partition(":")
    where, _, number = place.partition("=")
    counted = where == "token" and number.isascii() and number.isdigit()
    if action not in ACTIONS or not (counted or (where in ("open", "prefill") and not number)):
        raise StartError(f"{VARIABLE} is {text!r}; write open, prefill or token=N, a colon, and one of {ACTIONS}.")
    return FailPoint(where, action, int(number or 0))


class FailingEngine(WrappedEngine):
    """As ``inner`` until its point is reached."""

    def __init__(self, inner: ShardEngine, point: FailPoint) -> None:
        super().__init__(inner)
        self._point = point
        self._reached = False
        self._tokens: Counter[SessionKey] = Counter()

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        if self._point.where == "open":
            self._fail()
        self._inner.open(key, plan)

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        if self._is_reached(items):
            self._fail()
        return self._inner.step(items)

    def _is_reached(self, items: Sequence[StepItem]) -> bool:
        if self._point.where == "prefill":
            return any(item.position == 0 for item in items)
        self._tokens.update(item.key for item in items if item.sample)
        return self._point.where == "token" and any(self._tokens[item.key] >= self._point.token for item in items)

    def _fail(self) -> None:
        if self._reached:
            return
        self._reached = True
        log.warning("fail point reached where=%s action=%s", self._point.where, self._point.action)
        match self._point.action:
            case "exit":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "oom":
                raise MemoryError
            case "nan":
                raise NodeFailed("The rows of this session are not finite numbers.", code="nan")
            case _:
                raise NodeFailed("Failed on order.", code="engine_failed")

    def close(self, key: SessionKey) -> None:
        self._tokens.pop(key, None)
        self._inner.close(key)
