"""The node's HTTP interface: link, forward, status, health, metrics. Each handler decodes, calls once, encodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, cast

from aiohttp import web
from msgspec import Meta
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from daemons.kit import host
from daemons.kit.files import FileServer
from daemons.kit.guard import Guard, guarding
from daemons.kit.web import json_response, make_app
from daemons.node.service import Node
from meshnet import __version__
from meshnet.domain.engine import ITEMSIZE, Rows
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import parse_node_id
from meshnet.domain.keys import KeyRing
from meshnet.wire import access, api
from meshnet.wire.decode import decode_json
from meshnet.wire.messages import Health, NodeStatus, TokenId

FORWARD_ROWS = 4096
"""Rows of one /v1/forward: it runs between two steps and delays every stream meanwhile."""
TokenList = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=FORWARD_ROWS)]


def node_app(
    node: Node,
    name: str,
    status: Callable[[], NodeStatus],
    files: FileServer | None = None,
    guard: Guard | None = None,
) -> web.Application:
    """``status`` is asked at each request; ``files`` gives what this node holds of the model to others. Without a
    ``guard`` of its own it is one on loopback, without keys."""

    async def get_status(request: web.Request) -> web.Response:
        return json_response(status())

    async def get_health(request: web.Request) -> web.Response:
        wallet, _ = parse_node_id(node.identity.node_id)
        return json_response(Health(node.state, __version__, wallet))

    async def get_metrics(request: web.Request) -> web.Response:
        return web.Response(body=metrics_of(status()), content_type="text/plain")

    async def post_forward(request: web.Request) -> web.Response:
        return await forward(node, request)

    given = [web.get(api.MODEL_FILE, files.serve, allow_head=False)] if files is not None else []
    app = make_app(
        [
            *given,
            web.get(api.LINK, node.links.accept),
            web.post(api.FORWARD, post_forward),
            web.get(api.STATUS, get_status),
            web.get(api.HEALTH, get_health),
            web.get(api.HEALTH_ALIAS, get_health),
            web.get(api.METRICS, get_metrics),
        ],
        api.MAX_FORWARD_BODY_BYTES,
    )
    app.middlewares.append(guarding(guard or Guard("local", access.NODE, KeyRing, node.now, node.now)))
    return app


async def forward(node: Node, request: web.Request) -> web.Response:
    """One stateless pass over the body's rows, from the layer the caller names: a node never guesses it."""
    shard = node.identity.holding.shard
    start = _layer(request, api.START_LAYER, None)
    end = _layer(request, api.END_LAYER, shard.end)
    if not shard.holds(start, end):
        raise InvalidRequest(f"Layers {start}-{end} are not inside this node's shard, {shard}.", param=api.START_LAYER)
    entering = _entering(node, request, await request.read())
    rows = await node.worker.call(lambda engine: engine.forward(entering, start, end))
    node.worker.forward_steps += 1
    headers = {api.SHAPE: f"{rows.shape[0]},{rows.shape[1]}", api.DTYPE: rows.dtype}
    return web.Response(body=bytes(rows.data), headers=headers, content_type="application/octet-stream")


def status_of(node: Node, name: str, loading: tuple[int, int], trackers: Sequence[str], registered: bool) -> NodeStatus:
    """``loading``: bytes read so far and in all."""
    holding, worker = node.identity.holding, node.worker
    return NodeStatus(
        node_id=holding.node_id,
        name=name,
        state=node.state,
        model_key=holding.model_key,
        revision=holding.revision,
        shard_start=holding.shard.start,
        shard_end=holding.shard.end,
        dtype=holding.dtype,
        epoch=node.identity.epoch,
        boot=holding.boot,
        sessions=len(node.sessions),
        queue_depth=worker.queue_depth,
        kv_budget_bytes=worker.kv.budget_bytes,
        kv_reserved_bytes=worker.kv.reserved_bytes,
        links=len(node.links),
        forward_steps=worker.forward_steps,
        rows_computed=worker.rows_computed,
        rss_bytes=host.rss_bytes(),
        loading_done_bytes=loading[0],
        loading_total_bytes=loading[1],
        uptime_s=node.now() - node.started_at,
        registered=registered,
        trackers=tuple(trackers),
    )


def metrics_of(status: NodeStatus) -> bytes:
    """The numbers of a status in Prometheus' text form."""
    registry = CollectorRegistry()
    for name in (
        "sessions",
        "queue_depth",
        "kv_budget_bytes",
        "kv_reserved_bytes",
        "links",
        "forward_steps",
        "rows_computed",
        "rss_bytes",
        "uptime_s",
        "registered",
    ):
        Gauge(f"meshnet_node_{name}", f"As in /v1/status: {name}.", registry=registry).set(float(getattr(status, name)))
    return generate_latest(registry)


def _layer(request: web.Request, header: str, default: int | None) -> int:
    text = request.headers.get(header)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidRequest(f"Header {header} is {text!r}; it must be a layer number.", param=header)
    return int(text)


def _entering(node: Node, request: web.Request, body: bytes) -> Rows | tuple[int, ...]:
    if request.content_type == "application/json":
        return decode_json(body, cast(type[tuple[int, ...]], TokenList))
    holding = node.identity.holding
    dtype = request.headers.get(api.DTYPE, "")
    if dtype != holding.dtype:
        raise InvalidRequest(f"Header {api.DTYPE} is {dtype!r}; this shard takes {holding.dtype}.", param=api.DTYPE)
    parts = request.headers.get(api.SHAPE, "").split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() and len(part) < 8 for part in parts):
        raise InvalidRequest(f"Header {api.SHAPE} must be rows,hidden.", param=api.SHAPE)
    count, hidden = (int(part) for part in parts)
    if hidden != holding.hidden_size or not 1 <= count <= FORWARD_ROWS:
        raise InvalidRequest(
            f"{count} rows of {hidden}; this takes 1-{FORWARD_ROWS} of {holding.hidden_size}.", param=api.SHAPE
        )
    if len(body) != count * hidden * ITEMSIZE[dtype]:
        raise InvalidRequest(f"The body has {len(body)} bytes, not {count} rows of {hidden} {dtype}.", param=api.SHAPE)
    return Rows(dtype, (count, hidden), body)
