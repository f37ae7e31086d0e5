"""Figures for Prometheus, in a registry of this tracker alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Plan
from meshnet.wire.routing import CallMessage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From a fast hop on loopback to a long prompt on an old machine.
_DECISION_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)
# From cached candidates to a cold search of a thousand nodes.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    def __init__(self, fleet: Fleet, running: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "meshnet_calls", "Chat calls that ended.", ["model", "outcome", "mode"], registry=self._registry
        )
        self._demand = Counter(
            "meshnet_requests", "Chat requests on arrival, served or not.", ["model"], registry=self._registry
        )
        self._tokens = Counter("meshnet_tokens", "Tokens of ended calls.", ["model", "kind"], registry=self._registry)
        self._reroutes = Counter("meshnet_reroutes", "Attempts beyond a call's first.", registry=self._registry)
        self._audits = Counter("meshnet_audits", "Audits of nodes' outputs.", ["result"], registry=self._registry)
        self._ttft = Histogram(
            "meshnet_first_token_seconds", "Arrival to first text.", buckets=_SECONDS, registry=self._registry
        )
        self._decisions = Counter(
            "meshnet_route_decisions",
            "Routes chosen, one an attempt.",
            ["model", "mode", "policy"],
            registry=self._registry,
        )
        self._decision_s = Histogram(
            "meshnet_route_decision_seconds",
            "To choose a route, candidates included.",
            buckets=_DECISION_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_Gauges(fleet, running))

    def demand(self, model_key: str) -> None:
        self._demand.labels(model_key).inc()

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def decided(self, plan: Plan) -> None:
        decision = plan.decision
        self._decisions.labels(decision.route.model_key, decision.mode, decision.policy).inc()
        self._decision_s.observe(plan.took_s)

    def audited(self, result: str) -> None:
        self._audits.labels(result).inc()

    def ended(self, call: CallMessage) -> None:
        self._calls.labels(call.model_key, call.outcome, call.mode or "none").inc()
        self._tokens.labels(call.model_key, "prompt").inc(call.prompt_tokens)
        self._tokens.labels(call.model_key, "completion").inc(call.completion_tokens)
        self._reroutes.inc(call.reroutes)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Gauges(Collector):
    """What is now: read when asked."""

    def __init__(self, fleet: Fleet, running: Callable[[], int]) -> None:
        self._fleet = fleet
        self._running = running

    def collect(self) -> Iterator[GaugeMetricFamily]:
        nodes = GaugeMetricFamily("meshnet_nodes", "Live nodes.", labels=["model", "state"])
        counts: dict[tuple[str, str], int] = {}
        for node in self._fleet.nodes():
            key = (node.model_key, node.state)
            counts[key] = counts.get(key, 0) + 1
        for key, count in counts.items():
            nodes.add_metric(key, count)
        yield nodes
        yield GaugeMetricFamily("meshnet_calls_running", "Chat calls running now.", value=self._running())
