"""A mesh whose owners and callers mean harm: every text that they can choose is one that breaks terminals or markup."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from meshnet.wire.routing import EventMessage
from meshnet.wire.status import Snapshot
from tests.tui import canned

HOSTILE = (
    "[/INST]",
    "[true, false]",
    "[b +",
    "\x1b[2J\x1b]0;x\x07",
    "❤️🎉👨‍👩‍👧",
    "漢字かな交じり",
    "\u202egnp.exe",
    "a\r\nb\tc",
)


def evil_mesh() -> Snapshot:
    """Every text that a node or a caller can choose is hostile, each row another one."""
    snapshot = canned.mesh()
    assert snapshot.routing is not None
    model = snapshot.routing.models[0]
    turn = itertools.cycle(HOSTILE)
    named = tuple(
        replace(c, hops=tuple(replace(h, name=next(turn)) for h in c.hops)) if i < 4 else c
        for i, c in enumerate(model.candidates)
    )
    return replace(
        snapshot,
        nodes=tuple(replace(node, name=next(turn), health=next(turn)) for node in snapshot.nodes),
        calls=tuple(
            replace(c, prompt=next(turn), error_message=next(turn), model_key=next(turn)) for c in snapshot.calls
        ),
        models=tuple(replace(m, id=m.id + text) for m, text in zip(snapshot.models * 4, HOSTILE, strict=True)),
        routing=replace(snapshot.routing, models=(replace(model, candidates=named, model_key=HOSTILE[3]),)),
    )


def hostile_events() -> tuple[EventMessage, ...]:
    turn = itertools.cycle(HOSTILE)
    return tuple(replace(event, text=next(turn), node_id=next(turn), kind=next(turn)) for event in canned.mesh_events())
