"""What the console knows at one moment, and what changed between two polls: pure, no widget and no clock.

``Shown`` is the whole input of every view; ``changes`` is the whole output of ``--plain``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshnet.wire.messages import NodeMessage
from meshnet.wire.routing import CallMessage, CandidateMessage, EventMessage, RoutingModel
from meshnet.wire.status import Snapshot
from tui.draw import numbers
from tui.draw.spans import visible
from tui.problems import Problem, find_problems

TPS_NEWS = 0.1
"""A learned speed is news in --plain when it moved by a tenth; less is the noise of single calls."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One moment as the views draw it. ``past`` are the snapshots until this one, oldest first."""

    snapshot: Snapshot
    past: tuple[Snapshot, ...] = ()
    events: tuple[EventMessage, ...] = ()
    """Newest first."""
    problems: tuple[Problem, ...] = ()
    prompts: bool = False
    """Prompts are shown; hidden until the operator asks."""
    events_served: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    """signature -> short route label, unique among those shown."""


def look(
    snapshot: Snapshot,
    past: tuple[Snapshot, ...] = (),
    events: tuple[EventMessage, ...] = (),
    prompts: bool = False,
    events_served: bool = True,
) -> Shown:
    """A snapshot with all that is derived from it."""
    return Shown(
        snapshot=snapshot,
        past=past or (snapshot,),
        events=events,
        problems=find_problems(snapshot, events),
        prompts=prompts,
        events_served=events_served,
        labels=route_labels(snapshot),
    )


def candidates(snapshot: Snapshot) -> Iterator[tuple[RoutingModel, CandidateMessage]]:
    """Every candidate with its model, in the tracker's order."""
    for model in snapshot.routing.models if snapshot.routing else ():
        for candidate in model.candidates:
            yield model, candidate


def candidate(snapshot: Snapshot, signature: str) -> CandidateMessage | None:
    return next((row for _, row in candidates(snapshot) if row.signature == signature), None)


def call(snapshot: Snapshot, call_id: str) -> CallMessage | None:
    return next((row for row in snapshot.calls if row.call_id == call_id), None)


def node(snapshot: Snapshot, node_id: str) -> NodeMessage | None:
    return next((row for row in snapshot.nodes if row.node_id == node_id), None)


def node_name(snapshot: Snapshot, node_id: str) -> str:
    """What people call it; the wallet's first letters where it has no name."""
    found = node(snapshot, node_id)
    return visible(found.name) if found and found.name else short_id(node_id)


def short_id(node_id: str) -> str:
    wallet, _, layers = node_id.partition(".")
    return f"{visible(wallet)[:6]}.{visible(layers)}" if layers else visible(node_id)[:12]


def route_labels(snapshot: Snapshot) -> dict[str, str]:
    """Names joined by ``>``; where two routes read the same, with the layers each hop executes."""
    hops = {row.signature: row.hops for _, row in candidates(snapshot)}
    for row in snapshot.calls:
        if row.attempts:
            hops.setdefault(row.signature, row.attempts[-1].hops)
    names = {
        signature: ">".join(_hop_name(snapshot, hop.node_id, hop.name) for hop in hops[signature]) for signature in hops
    }
    seen: dict[str, int] = {}
    for name in names.values():
        seen[name] = seen.get(name, 0) + 1
    return {
        signature: name
        if seen[name] == 1
        else ">".join(
            f"{_hop_name(snapshot, hop.node_id, hop.name)}[{hop.start_layer}-{hop.end_layer}]"
            for hop in hops[signature]
        )
        for signature, name in names.items()
    }


def _hop_name(snapshot: Snapshot, node_id: str, name: str) -> str:
    return visible(name) if name else node_name(snapshot, node_id)


def label_of(shown: Shown, signature: str) -> str:
    """The route's short name; of a route that nobody lists any more, the signature's own words."""
    return shown.labels.get(signature) or visible(signature.partition("|")[2].strip().replace(" -> ", ">") or signature)


# ---- what changed, one sentence a change


def changes(before: Snapshot | None, after: Snapshot) -> list[str]:
    """One line per change, most important first. ``before`` None: what there is."""
    said = list(_node_changes(before, after)) + list(_model_changes(before, after))
    said += list(_route_changes(before, after)) + list(_call_changes(before, after))
    old = {problem.key for problem in find_problems(before)} if before else set()
    new = find_problems(after)
    said += [f"problem: {problem.text}" for problem in new if problem.key not in old]
    if before:
        standing = {problem.key for problem in new}
        said += [f"solved: {problem.text}" for problem in find_problems(before) if problem.key not in standing]
    return said


def _node_changes(before: Snapshot | None, after: Snapshot) -> Iterator[str]:
    old = {row.node_id: row for row in before.nodes} if before else {}
    new = {row.node_id: row for row in after.nodes}
    for node_id, row in new.items():
        was = old.get(node_id)
        layers = f"layers {row.shard_start}-{row.shard_end} of {visible(row.model_key)}"
        if was is None:
            yield f"node {visible(row.name)} is {row.state}, {layers}"
        elif was.state != row.state:
            yield f"node {visible(row.name)} went from {was.state} to {row.state}, {layers}"
    for node_id, row in old.items():
        if node_id not in new:
            yield f"node {visible(row.name)} left, it held layers {row.shard_start}-{row.shard_end}"


def _model_changes(before: Snapshot | None, after: Snapshot) -> Iterator[str]:
    old = {row.id: row for row in before.models} if before else {}
    for row in after.models:
        was = old.get(row.id)
        if was is None or was.ready != row.ready:
            missing = f"{row.coverage_deficit:.0%} of its layers are held by no node"
            yield f"model {visible(row.id)} " + ("is ready" if row.ready else f"cannot answer: {missing}")


def _route_changes(before: Snapshot | None, after: Snapshot) -> Iterator[str]:
    old = {row.signature: row for _, row in candidates(before)} if before else {}
    labels = route_labels(after)
    for _, row in candidates(after):
        was = old.get(row.signature)
        name, speed = labels[row.signature], f"{numbers.tps(row.learned_tps)} tok/s"
        if was is None:
            yield f"route {name}: {row.status}, prior {numbers.tps(row.prior_tps)}, learned {speed}"
        elif was.status != row.status:
            yield f"route {name}: from {was.status} to {row.status}, {speed}"
        elif _moved(was.learned_tps, row.learned_tps):
            share = numbers.percent(row.expected_share)
            yield f"route {name}: {numbers.tps(was.learned_tps)} to {speed}, expected share {share}"
    for signature in old.keys() - {row.signature for _, row in candidates(after)}:
        yield f"route {route_labels(before)[signature] if before else signature}: no candidate any more"


def _moved(was: float | None, now: float | None) -> bool:
    if was is None or now is None:
        return was is not now
    return abs(now - was) > TPS_NEWS * max(was, 1e-9)


def _call_changes(before: Snapshot | None, after: Snapshot) -> Iterator[str]:
    if before is None:
        return
    old = {row.seq: row.outcome for row in before.calls}
    labels = route_labels(after)
    for row in reversed(after.calls):
        if old.get(row.seq) == row.outcome:
            continue
        route = labels.get(row.signature, visible(row.signature))
        text = f"call {visible(row.call_id)[-8:]}: {row.outcome}, {row.mode or 'no route'} {route}"
        if row.outcome != "running":
            text += f", {row.prompt_tokens} tokens in, {row.completion_tokens} out, {numbers.tps(row.tps)} tok/s"
        if row.reroutes:
            text += f", re-routed {row.reroutes}x"
        yield text + (f": {visible(row.error_message)}" if row.error_message else "")
