"""Where a question can go: auto, a policy, or a pinned route of the moment looked at. Pure."""

from __future__ import annotations

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.routing import POLICY_NAMES
from meshnet.wire.routing import CandidateMessage
from tui.chat import AUTO, Choice
from tui.chat_settings import Where
from tui.draw import numbers
from tui.draw.spans import visible
from tui.model import Shown, candidates, label_of


def choice_named(shown: Shown | None, model_key: str, where: Where) -> Choice:
    """The choice of a typed ``:route`` or ``:policy``. Raises InvalidRequest for a name that nothing has."""
    offered = list(choices_of(shown, model_key).values()) if shown else [(AUTO, "")]
    kinds = {"policy": f"policy {where.name}", "route": f"pinned {where.name}"}
    label = AUTO.label if where.name == "auto" else kinds[where.kind]
    found = next((choice for choice, _ in offered if choice.label == label), None)
    if found is None:
        raise InvalidRequest(f"there is no {where.kind} {where.name!r}: p lists them")
    return found


def pin(shown: Shown, row: CandidateMessage) -> Choice:
    return Choice(tuple(hop.node_id for hop in row.hops), f"pinned {label_of(shown, row.signature)}")


def choices_of(shown: Shown, model_key: str) -> dict[str, tuple[Choice, str]]:
    """Auto, the policies, and every candidate of this model, fastest first."""
    found: dict[str, tuple[Choice, str]] = {"auto": (AUTO, "as the tracker decides")}
    for policy in POLICY_NAMES:
        found[f"policy:{policy}"] = (Choice(label=f"policy {policy}", policy=policy), "for this question only")
    rows = [row for model, row in candidates(shown.snapshot) if model.model_key == model_key and row.current]
    for row in sorted(rows, key=lambda row: -(row.learned_tps or 0)):
        text = (
            f"{visible(row.status)}, learned {numbers.tps(row.learned_tps)}, prior {numbers.tps(row.prior_tps)} tok/s"
        )
        found[row.signature] = (pin(shown, row), text)
    return found
