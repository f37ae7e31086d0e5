"""The tracker over HTTP: every route, decoded, handed to its part, encoded."""

from __future__ import annotations

import ssl

from aiohttp import web
from msgspec.structs import replace

import meshnet
from daemons.kit.guard import Guard, caller_of, guarding
from daemons.kit.web import Site, json_response, make_app, serve
from daemons.tracker import respond, routing_views, views
from daemons.tracker.doors import check_url, make_guard, require_signer
from daemons.tracker.feed import feed
from daemons.tracker.metrics import CONTENT_TYPE
from daemons.tracker.parts import Tracker
from daemons.tracker.settings import TrackerConfig
from meshnet.domain.errors import InvalidRequest, Overloaded
from meshnet.domain.keys import KeyRing
from meshnet.wire import api
from meshnet.wire.decode import decode_json
from meshnet.wire.demand import AssignmentRequest, GossipMessage
from meshnet.wire.messages import Health, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse
from meshnet.wire.openai import parse_chat_request
from meshnet.wire.routing import ExplainRequest

DEFAULT_PAGE = 50
SHARES_OVER_S = 3600.0
"""Calls this young make the actual shares: older ones were routed by what is long forgotten."""


class Handlers:
    """HTTP to one service function and back."""

    def __init__(self, tracker: Tracker, guard: Guard) -> None:
        self._tracker = tracker
        self._guard = guard

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(api.NODES, self.register),
            web.get(api.NODES, self.nodes, allow_head=False),
            web.post(api.HEARTBEAT, self.heartbeat),
            web.delete(api.NODE, self.leave),
            web.get(api.MODELS, self.models, allow_head=False),
            web.get(api.MODEL, self.model, allow_head=False),
            web.get(api.MODEL_FILE, self._tracker.supply.files.serve, allow_head=False),
            web.post(api.ASSIGNMENTS, self.assign),
            web.get(api.COVERAGE, self.coverage, allow_head=False),
            web.get(api.ROUTING, self.routing, allow_head=False),
            web.post(api.EXPLAIN, self.explain),
            web.get(api.STATS, self.stats, allow_head=False),
            web.post(api.GOSSIP, self.gossip),
            web.get(api.USAGE, self.usage, allow_head=False),
            web.get(api.CALLS, self.calls, allow_head=False),
            web.get(api.CALL, self.call, allow_head=False),
            web.get(api.EVENTS, self.follow, allow_head=False),
            web.post(api.CHAT, self.chat),
            web.get(api.HEALTH, self.health),
            web.get(api.HEALTH_ALIAS, self.health),
            web.get(api.READY, self.ready),
            web.get(api.METRICS, self.metrics, allow_head=False),
        ]

    async def register(self, request: web.Request) -> web.Response:
        claim = decode_json(await _control_body(request), RegisterRequest)
        require_signer(request, claim.wallet)
        for url in filter(None, (claim.url, claim.direct_url)):
            check_url(url, self._tracker.config)
        lease = self._tracker.fleet.register(claim, self._guard.address_of(request))
        identity = self._tracker.identity
        return json_response(
            RegisterResponse(
                node_id=lease.node.node_id,
                epoch=lease.node.epoch,
                heartbeat_interval_s=self._tracker.fleet.heartbeat_s,
                tracker_id=identity.tracker_id,
                tracker_boot=identity.boot,
                tracker_wallet=identity.wallet,
                relays=self._tracker.relays,
            ),
            status=201,
        )

    async def heartbeat(self, request: web.Request) -> web.Response:
        beat = decode_json(await _control_body(request), HeartbeatRequest)
        lease = self._tracker.fleet.heartbeat(request.match_info["node_id"], beat)
        advice = self._tracker.supply.rebalancing.advice_for(lease.node.node_id)
        reach = self._tracker.reach
        return json_response(
            HeartbeatResponse(
                epoch=lease.node.epoch,
                advice=advice,
                unreachable=reach is not None and reach.is_unreachable(lease.node),
                has_direct_way=reach is not None and reach.has_direct_way(lease),
            )
        )

    async def leave(self, request: web.Request) -> web.Response:
        epoch = _int_query(request, "epoch")
        self._tracker.fleet.leave(request.match_info["node_id"], epoch)
        return web.Response(status=204)

    async def nodes(self, request: web.Request) -> web.Response:
        tracker = self._tracker
        return json_response(
            views.nodes(tracker.fleet, tracker.planner, tracker.supply.claims.ratio, tracker.clock.now())
        )

    async def assign(self, request: web.Request) -> web.Response:
        wanted = decode_json(await _control_body(request), AssignmentRequest)
        require_signer(request, wanted.wallet)
        answer = await self._tracker.supply.assignments.assign(wanted)
        return json_response(replace(answer, tickets=self._tracker.link_tickets(answer.sources, wanted.wallet)))

    async def models(self, request: web.Request) -> web.Response:
        return json_response(views.models(self._tracker.fleet, self._tracker.started))

    async def model(self, request: web.Request) -> web.Response:
        return json_response(views.model(self._tracker.fleet, request.match_info["model_key"], self._tracker.started))

    async def coverage(self, request: web.Request) -> web.Response:
        tracker = self._tracker
        reserved = tracker.supply.assignments.reservations.live(tracker.clock.now())
        return json_response(views.coverage(tracker.fleet, request.query.get("model"), reserved))

    async def routing(self, request: web.Request) -> web.Response:
        tracker = self._tracker
        since = tracker.clock.wall() - SHARES_OVER_S
        wanted = request.query.get("model")
        return json_response(
            routing_views.routing(tracker.fleet, tracker.planner, wanted, lambda key: tracker.wall.shares(key, since))
        )

    async def explain(self, request: web.Request) -> web.Response:
        tracker = self._tracker
        wanted = decode_json(await _control_body(request), ExplainRequest)
        views.model(tracker.fleet, wanted.model, tracker.started)
        plan = tracker.planner.explain(wanted.model, pin=wanted.route, policy=wanted.route_policy, seed=wanted.seed)
        return json_response(
            routing_views.explain(tracker.fleet, tracker.planner, wanted.model, plan, wanted.route_policy)
        )

    async def stats(self, request: web.Request) -> web.Response:
        return json_response(self._tracker.supply.stats())

    async def gossip(self, request: web.Request) -> web.Response:
        body = await _body(request, api.MAX_GOSSIP_BODY_BYTES)
        key = caller_of(request).key
        answer = self._tracker.supply.gossip.answer(decode_json(body, GossipMessage), key.key_id if key else "")
        return json_response(answer)

    async def usage(self, request: web.Request) -> web.Response:
        limit = _int_query(request, "limit")
        shown = DEFAULT_PAGE if limit is None else limit
        return json_response(self._tracker.supply.usage.response(request.query.get("model"), shown))

    async def calls(self, request: web.Request) -> web.Response:
        query = request.query
        limit = _int_query(request, "limit")
        page = self._tracker.wall.page(
            DEFAULT_PAGE if limit is None else limit,
            before=_int_query(request, "before"),
            model=query.get("model"),
            mode=query.get("mode"),
            node=query.get("node"),
            outcome=query.get("outcome"),
        )
        return json_response(page)

    async def call(self, request: web.Request) -> web.Response:
        return json_response(self._tracker.wall.get(request.match_info["call_id"]))

    async def follow(self, request: web.Request) -> web.StreamResponse:
        return await feed(request, self._tracker.events)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        chat = parse_chat_request(await request.read())
        if chat.stream:
            return await respond.stream(request, self._tracker.chat, chat)
        return await respond.whole(self._tracker.chat, chat)

    async def health(self, request: web.Request) -> web.Response:
        tracker = self._tracker
        uptime_s = round(tracker.clock.now() - tracker.started_at, 3)
        return json_response(Health("ok", meshnet.__version__, tracker.identity.wallet, uptime_s))

    async def ready(self, request: web.Request) -> web.Response:
        fleet = self._tracker.fleet
        if not views.ready_models(fleet):
            waiting = ", ".join(fleet.model_keys()) or "no node has registered"
            raise Overloaded(f"No model is fully covered by ready nodes yet ({waiting}).", code="not_ready")
        return json_response(Health("ready", meshnet.__version__))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._tracker.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


async def open_site(
    tracker: Tracker, host: str, port: int, guard: Guard | None = None, tls: ssl.SSLContext | None = None
) -> Site:
    """Serve behind ``guard``, or behind that of a tracker on loopback without keys. Raises StartError when the address
    cannot be bound."""
    guard = guard or make_guard(TrackerConfig(), tracker.identity, tracker.clock, KeyRing)
    guard.on_clock_off = tracker.fleet.clock_off
    app = make_app(Handlers(tracker, guard).routes(), api.MAX_CHAT_BODY_BYTES)
    app.middlewares.append(guarding(guard))
    site = await serve(app, host, port, tls, guard.lets_in)
    tracker.start(site.url)
    return site


async def _control_body(request: web.Request) -> bytes:
    return await _body(request, api.MAX_CONTROL_BODY_BYTES)


async def _body(request: web.Request, most_bytes: int) -> bytes:
    body = await request.read()
    if len(body) > most_bytes:
        raise InvalidRequest(
            f"The body has {len(body)} bytes; at most {most_bytes} are taken here.",
            code="body_too_large",
        )
    return body


def _int_query(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidRequest(f"{name} is {text!r}; it must be a whole number.", param=name)
    return int(text)
