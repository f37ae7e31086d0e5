"""Policies: how one of the candidate routes is chosen. ``make_policy`` is the door."""

from __future__ import annotations

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.policies.adr import AdrPolicy, choose_route
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.routing import POLICY_NAMES, Policy, RoutingConfig

__all__ = ["RoutingMemory", "choose_route", "make_policy"]


def make_policy(name: str, config: RoutingConfig, memory: RoutingMemory | None = None) -> Policy:
    """The policy of that name, learning into ``memory`` (a new one if None). Policies that share a memory share what
    is learned: pass each outcome to one of them, or to the memory. Raises InvalidRequest for an unknown name."""
    memory = memory or RoutingMemory(config)
    match name:
        case "adr":
            return AdrPolicy(config, memory)
        case _:
            raise InvalidRequest(
                f"route policy {name!r} is unknown; choose one of {', '.join(POLICY_NAMES)}.", param="route_policy"
            )
