"""Policies: how one of the candidate routes is chosen. ``make_policy`` and ``Router`` are the doors."""

from __future__ import annotations

from meshnet.domain.policies.adr import choose_route
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.router import Router, greedy_fallback, make_policy, pinned_decision, propose

__all__ = [
    "Router",
    "RoutingMemory",
    "choose_route",
    "greedy_fallback",
    "make_policy",
    "pinned_decision",
    "propose",
]
