"""What was measured of single nodes: seconds per token and layer, learned from hop timings or from end-to-end times.

A node's speed is a normal belief about ``ln(seconds per token and layer, idle)``: logarithms, because a node is wrong
by a factor, and because a route sixty times slower must not look worth a try for being uncertain. The belief is a
Kalman filter whose variance grows by one sample's noise per half-life, so that what is not measured is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshnet.domain.candidates import HOP_LINK_S, HopWork, hop_work, unmeasured_link_s
from meshnet.domain.decayed import DecayedSum
from meshnet.domain.routes import Hop
from meshnet.domain.routing import HopTiming, Outcome, is_positive_number
from meshnet.domain.routing_stats import PRUNE_AFTER_S

SAMPLE_VARIANCE = 0.04
"""Of one long answer's ln(seconds): noise of 20 %. Raising it learns slower and tries more."""
SHORT_ANSWER_STEPS = 16
"""An answer of this many steps is twice as noisy as a long one."""
PRIOR_VARIANCE = 0.5
"""Of ln(true / claimed) before anything is measured, and the most that idling adds up to: a factor of two."""
SURPRISE_SIGMAS = 3.0
"""A sample further off than this says that the node changed: the belief opens up and follows at once."""
DRIFT_KEPT = 0.7
"""Of the running sum of surprises, from sample to sample. Higher finds smaller changes, and later."""
DRIFT_SIGMAS = SURPRISE_SIGMAS / math.sqrt(1.0 - DRIFT_KEPT**2)
"""That sum, in sigmas of one sample, beyond which a node changed by too little for one sample to tell: its own standard
deviation is ``1 / sqrt(1 - kept^2)`` while nothing changes."""
LOAD_FACTOR = 1.0
"""Slowdown per session already on a node, before it is measured: ADR-0013's queue_depth + 1."""
LOAD_FACTOR_MASS = 20.0
"""Squared loads it takes until the measured factor weighs as much as LOAD_FACTOR."""
MAX_LOAD_FACTOR = 3.0
"""Beyond it one stray sample would close a node."""


@dataclass(slots=True)
class _Belief:
    mean: float
    variance: float
    stamp: float
    samples: int = 0
    drift: float = 0.0
    """Fading sum of surprises, each in sigmas."""


_NodeView = tuple[float, float, float]
"""(seconds per token and layer, its log's variance, link seconds) of a node at a moment."""


class Predictions(NamedTuple):
    """Of some routes, in their order: what each takes per token now, and how sure that is."""

    seconds: list[float]
    parts: list[list[float]]
    """Each hop's own seconds; the rest is links."""
    variances: list[float]
    """Of ln(seconds): ``sum over hops of share^2 x variance of ln(the hop's seconds)``."""


class HopStatsStore:
    """Beliefs per node_id (another shard is another node), the load factor and link times of the mesh."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._beliefs: dict[str, _Belief] = {}
        self._links: dict[str, DecayedSum] = {}
        self._load = DecayedSum()
        self.dropped = 0
        """Timings refused because a number in them was none."""

    def __len__(self) -> int:
        return len(self._beliefs)

    @property
    def load_factor(self) -> float:
        """c in ``seconds = idle seconds x (1 + c x load)``: least squares of the measured, shrunk to LOAD_FACTOR."""
        total = self._load.numerator + LOAD_FACTOR * LOAD_FACTOR_MASS
        return min(max(total / (self._load.denominator + LOAD_FACTOR_MASS), 0.0), MAX_LOAD_FACTOR)

    def layer_s(self, node_id: str, claimed_layer_s: float) -> float:
        """Seconds per token and layer of the idle node: what was learned, else what it claims."""
        belief = self._beliefs.get(node_id)
        return math.exp(belief.mean) if belief is not None else claimed_layer_s

    def link_s(self, node_id: str, unmeasured_s: float = HOP_LINK_S) -> float:
        """Seconds a token spends on the way to this node's next hop and in frames' handling; what is expected
        unmeasured counts as one sample."""
        link = self._links.get(node_id)
        return unmeasured_s if link is None else (link.numerator + unmeasured_s) / (link.denominator + 1.0)

    def samples(self, node_id: str) -> int:
        belief = self._beliefs.get(node_id)
        return belief.samples if belief is not None else 0

    def predict(self, works: Iterable[Sequence[HopWork]], now: float) -> Predictions:
        """Of routes by their hops' work, ``sum over hops of layers x layer_s x (1 + c x load) + link``. Every
        choice runs this for every hop of every candidate."""
        known: dict[str, _NodeView] = {}
        factor = self.load_factor
        found = Predictions([], [], [])
        for work in works:
            parts: list[float] = []
            total = spread = 0.0
            for node_id, layers, load, claim, unmeasured_s in work:
                view = known.get(node_id)
                if view is None:  # what is the same for every route over a node
                    view = known[node_id] = self._view(node_id, claim, unmeasured_s, now)
                layer_s, variance, link_s = view
                part = layers * layer_s * (1.0 + factor * load) if load else layers * layer_s
                parts.append(part)
                total += part + link_s
                spread += part * part * variance
            found.seconds.append(total)
            found.parts.append(parts)
            found.variances.append(spread / (total * total))
        return found

    def variance(self, node_id: str, now: float) -> float:
        """Of ln(seconds per layer) of this node: how little is known of it."""
        belief = self._beliefs.get(node_id)
        return PRIOR_VARIANCE if belief is None else self._variance(belief, now)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a whole answer: each hop from its own timing where frames carried one, else all of them from the
        end-to-end time, each to the degree that it is uncertain and weighs in the route."""
        hops, now = outcome.route.hops, outcome.finished_at
        loads = outcome.loads if len(outcome.loads) == len(hops) else (0,) * len(hops)
        timed = self._usable_timings(outcome)
        token_s = _decode_token_s(outcome)
        if len(timed) == len(hops):
            for hop, load in zip(hops, loads, strict=True):
                self._learn_hop(hop, load, timed[hop.node_id], now)
            if token_s is not None:
                self._learn_links(hops, token_s - sum((t.compute_s + t.queue_s) / t.steps for t in timed.values()), now)
        elif token_s is not None:
            claimed = outcome.claimed_layer_s
            if len(claimed) != len(hops) or not all(map(is_positive_number, claimed)):
                claimed = (token_s / outcome.route.n_layers,) * len(hops)
            self._attribute(hops, loads, claimed, token_s, outcome.completion_tokens, now)

    def forget(self, node_id: str) -> None:
        """Another process has this id, set otherwise perhaps: it is what it claims until it is measured."""
        self._beliefs.pop(node_id, None)
        self._links.pop(node_id, None)

    def prune(self, now: float) -> None:
        """Forget nodes unmeasured for PRUNE_AFTER_S."""
        for node_id in [n for n, belief in self._beliefs.items() if now - belief.stamp > PRUNE_AFTER_S]:
            del self._beliefs[node_id]
            self._links.pop(node_id, None)

    def _view(self, node_id: str, claimed_layer_s: float, unmeasured_link_s: float, now: float) -> _NodeView:
        belief, link_s = self._beliefs.get(node_id), self.link_s(node_id, unmeasured_link_s)
        if belief is None:
            return claimed_layer_s, PRIOR_VARIANCE, link_s
        return math.exp(belief.mean), self._variance(belief, now), link_s

    def _variance(self, belief: _Belief, now: float) -> float:
        grown = belief.variance + SAMPLE_VARIANCE * max(now - belief.stamp, 0.0) / self._half_life_s
        return min(grown, max(PRIOR_VARIANCE, belief.variance))

    def _usable_timings(self, outcome: Outcome) -> dict[str, HopTiming]:
        usable: dict[str, HopTiming] = {}
        for timing in outcome.hop_timings:
            waited = timing.queue_s == 0 or is_positive_number(timing.queue_s)
            if is_positive_number(timing.steps) and is_positive_number(timing.compute_s) and waited:
                usable[timing.node_id] = timing
            else:
                self.dropped += 1
        return {hop.node_id: usable[hop.node_id] for hop in outcome.route.hops if hop.node_id in usable}

    def _learn_hop(self, hop: Hop, load: int, timing: HopTiming, now: float) -> None:
        observed = math.log((timing.compute_s + timing.queue_s) / (timing.steps * hop.work_layers))
        noise = SAMPLE_VARIANCE * (1.0 + SHORT_ANSWER_STEPS / timing.steps)
        belief = self._beliefs.get(hop.node_id)
        if belief is None:
            start = observed - math.log1p(self.load_factor * load)
            self._beliefs[hop.node_id] = _Belief(start, noise, now, 1)
            return
        if load and belief.samples > 2:
            self._load.add((math.exp(observed - belief.mean) - 1.0) * load, load * load, now, self._half_life_s)
        self._update(belief, observed - math.log1p(self.load_factor * load) - belief.mean, 1.0, noise, now)

    def _update(
        self, belief: _Belief, surprise: float, share: float, noise: float, now: float, others: float = 0.0
    ) -> None:
        """One scalar Kalman step: the sample is ``share`` of this belief plus ``others`` (variance of the rest)."""
        variance = self._variance(belief, now)
        expected = share * share * variance + others + noise
        sigmas = surprise / math.sqrt(expected)
        belief.drift = DRIFT_KEPT * belief.drift + sigmas
        if abs(sigmas) > SURPRISE_SIGMAS or abs(belief.drift) > DRIFT_SIGMAS:
            belief.drift = 0.0
            variance += surprise * surprise
            expected = share * share * variance + others + noise
        gain = share * variance / expected
        belief.mean += gain * surprise
        belief.variance = variance * (1.0 - gain * share)
        belief.stamp = max(belief.stamp, now)
        belief.samples += 1

    def _attribute(
        self,
        hops: Sequence[Hop],
        loads: Sequence[int],
        claimed: Sequence[float],
        token_s: float,
        tokens: int,
        now: float,
    ) -> None:
        predicted = self.predict([hop_work(hops, loads, claimed)], now)
        surprise = math.log(token_s / predicted.seconds[0])
        shares = [part / predicted.seconds[0] for part in predicted.parts[0]]
        noise = SAMPLE_VARIANCE * (1.0 + SHORT_ANSWER_STEPS / tokens)
        parts = [share * share * self.variance(hop.node_id, now) for hop, share in zip(hops, shares, strict=True)]
        for hop, claim, share, part in zip(hops, claimed, shares, parts, strict=True):
            belief = self._beliefs.get(hop.node_id)
            if belief is None:
                belief = self._beliefs[hop.node_id] = _Belief(math.log(claim), PRIOR_VARIANCE, now)
            self._update(belief, surprise, share, noise, now, others=sum(parts) - part)

    def _learn_links(self, hops: Sequence[Hop], residual_s: float, now: float) -> None:
        """What a token spent between the hops is seen only in sum: each link takes an equal part of the surprise, so
        that many routes over the same links tell them apart."""
        known = [self.link_s(hop.node_id, unmeasured_link_s(hop)) for hop in hops]
        surprise = (residual_s - sum(known)) / len(hops)
        for hop, seconds in zip(hops, known, strict=True):
            link = self._links.setdefault(hop.node_id, DecayedSum())
            link.add(max(seconds + surprise, 0.0), 1.0, now, self._half_life_s)


def _decode_token_s(outcome: Outcome) -> float | None:
    """Seconds per decoded token, from end to end; None where it was not measured."""
    tokens, seconds = outcome.completion_tokens, outcome.decode_s
    if not is_positive_number(tokens) or tokens < 2 or not is_positive_number(seconds):
        return None
    return seconds / (tokens - 1) if seconds is not None else None
