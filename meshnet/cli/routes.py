"""``meshnet routes``: what the tracker learned of each route, how the next requests will spread, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.question import choose_model, names_of, short_route
from meshnet.cli.replay import replay
from meshnet.cli.status import print_json
from meshnet.cli.tables import plain_table
from meshnet.cli.terminal import console, visible
from meshnet.cli.watch import watch as watch_it
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import short_node_id
from meshnet.wire.routing import (
    CandidateMessage,
    DecisionMessage,
    ExplainRequest,
    ExplainResponse,
    RouteHop,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
)

WATCH_EVERY_S = 4.0
"""ADR-0021's own rhythm for this table."""
NOBODY: Mapping[str, str] = MappingProxyType({})
NO_CANDIDATE = "* measured, but no candidate now: it was pinned, or the mesh was another"
_STYLES = {"proven": "green", "unsampled": "cyan", "stale": "yellow", "decayed": "yellow"}


app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.command("replay")(replay)


@app.callback()
def routes(
    context: typer.Context,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="What would be chosen now, and why.")] = False,
    policy: Annotated[str | None, typer.Option(help="With --explain: by this policy.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What the tracker answers.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """Show the learned routes: speed, expected share of traffic, samples, status.

    \b
    Examples:
      meshnet routes
      meshnet routes --watch
      meshnet routes --explain --model smollm2-135m
      meshnet routes replay --policy hop      what another policy would have earned
    """
    if context.invoked_subcommand is not None:
        return
    url = find_tracker(tracker, os.environ, Path.cwd())
    if explain:
        answer = ask(url, lambda client: _explain(client, model, policy))
        print_json(answer) if as_json else console().print(render_explanation(answer), soft_wrap=True)
        return
    if as_json:
        print_json(ask(url, lambda client: client.routing(model)))
    elif watch:
        watch_it(console(), lambda: ask(url, lambda client: _drawn(client, model)), WATCH_EVERY_S)
    else:
        console().print(ask(url, lambda client: _drawn(client, model)))


async def _drawn(client: TrackerClient, model: str | None) -> RenderableType:
    answer = await client.routing(model)
    nodes = await names_of(client) if any(of.left_out for of in answer.models) else {}
    return render(answer, nodes)


def render(answer: RoutingResponse, nodes: Mapping[str, str] = NOBODY) -> RenderableType:
    """``nodes``: names by node_id, of those that stand in no candidate."""
    if not answer.models:
        return Text("No node serves a model yet. Start some with: meshnet up")
    return Group(*(part for model in answer.models for part in _model(model, answer.config, nodes)))


def render_explanation(answer: ExplainResponse) -> RenderableType:
    routes = routes_in(answer.candidates)
    lines = [Text(f"{visible(answer.model_key)}, topology epoch {answer.topology_epoch}", "bold")]
    decision = answer.decision
    if decision is None:
        lines.append(Text("No route can be chosen.", "bold red"))
    else:
        chosen = _route(decision.signature, routes)
        lines.append(Text(f"{decision.mode} by {decision.policy or 'the tracker'}: {chosen}", "bold"))
        lines.append(Text(f"because {visible(decision.why)}"))
        for signature in decision.scores | decision.probabilities:
            lines.append(Text(f"  {_route(signature, routes):<40} {_score(decision, signature)}"))
    lines += [Text(f"left out: {visible(who)}: {visible(why)}") for who, why in answer.left_out]
    return Group(*lines)


def routes_in(candidates: Iterable[CandidateMessage]) -> dict[str, str]:
    """By signature, as people read them; a hop behind a relay says so."""
    return {row.signature: " -> ".join(map(_hop, row.hops)) for row in candidates}


def _hop(hop: RouteHop) -> str:
    name = visible(hop.name or short_node_id(hop.node_id))
    return f"{name}[{hop.start_layer}-{hop.end_layer}]{' relayed' if hop.relayed else ''}"


def _model(model: RoutingModel, config: RoutingConfigMessage, nodes: Mapping[str, str]) -> Sequence[RenderableType]:
    title = (
        f"{visible(model.model_key)}: policy {visible(config.policy)}, explore {config.explore_share:g}, "
        f"alpha {config.weight_alpha:g}, half-life {config.stats_half_life_s:g} s, "
        f"min tokens {config.min_sample_tokens}, topology epoch {model.topology_epoch}"
    )
    table = plain_table("route", "status", "tok/s>", "±>", "coef>", "share>", "calls>", "weight>", "prior>")
    routes = routes_in(model.candidates)
    for row in model.candidates:
        table.add_row(
            routes[row.signature],
            Text(row.status + ("" if row.current else "*"), _STYLES.get(row.status, "") if row.current else "dim"),
            _number(row.learned_tps, ".1f"),
            _number(row.spread_tps, ".1f"),
            _number(row.coefficient, ".2f"),
            f"{row.expected_share:.0%}",
            str(row.samples),
            f"{row.weight:.1f}",
            f"{row.prior_tps:.1f}",
        )
    notes = [] if all(row.current for row in model.candidates) else [Text(NO_CANDIDATE, "dim")]
    notes += [Text(f"left out: {visible(nodes.get(who, who))}: {visible(why)}", "dim") for who, why in model.left_out]
    return [Text(title, "bold"), table, *notes]


def _route(signature: str, routes: Mapping[str, str]) -> str:
    return routes.get(signature) or visible(short_route(signature, {}))


def _score(decision: DecisionMessage, signature: str) -> str:
    """``63%  score 18.2``, as far as the policy says."""
    chance, score = decision.probabilities.get(signature), decision.scores.get(signature)
    parts = ["" if chance is None else f"{chance:.0%}", "" if score is None else f"score {score:.3g}"]
    return "  ".join(filter(None, parts))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


async def _explain(client: TrackerClient, model: str | None, policy: str | None) -> ExplainResponse:
    key = await choose_model(client, model)
    return await client.explain(ExplainRequest(model=key, route_policy=policy))
