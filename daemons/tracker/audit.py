"""Audits: now and then a hop of a call that went well is asked for its layers' output on public rows, and so is another
holder of them; when the two disagree, a third decides. Disagreement is shown, counted, and the one convicted left out.

Nodes are asked by HTTP over the connector that dials heads, so that those behind TLS or a relay are asked as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import aiohttp

from daemons.kit.tasks import Tasks
from daemons.tracker.calls import Call
from daemons.tracker.fleet import Fleet
from meshnet.domain.audit import PROBE_TOKENS, TOLERANCE, Verdict, judge, probe_rows
from meshnet.domain.engine import Rows
from meshnet.domain.ids import NodeId, Wallet
from meshnet.domain.nodes import Node
from meshnet.domain.routes import Hop
from meshnet.wire import api
from meshnet.wire.relay import dialled_url

log = logging.getLogger(__name__)

FORWARD_S = 10.0
"""One pass over four rows between two steps of a busy node."""
AT_ONCE = 2
"""Audits under way; more are not begun. They are there to be rare."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Four rows of hidden 16,384, or the logits of a vocabulary of a million, in float32."""


class Tell(Protocol):
    """Who hears of an audit's end: an event of this kind, with fields as of ``EventLog.add``."""

    def __call__(self, kind: str, **fields: Any) -> object: ...


class Auditor:
    """``share`` of the calls that went well are audited, one hop each. ``on_result`` counts "agreed", "disagreed",
    "convicted" and "unanswered"; ``convict`` is told of a node that two others contradict."""

    def __init__(
        self,
        fleet: Fleet,
        http: aiohttp.ClientSession,
        rng: Random,
        share: float,
        tell: Tell,
        on_result: Callable[[str], None],
        convict: Callable[[NodeId, str], None],
        ticket_for: Callable[[Wallet], str] | None = None,
    ) -> None:
        """``http`` reaches every kind of address that a node may have; ``ticket_for`` opens a node's door."""
        self._fleet = fleet
        self._http = http
        self._rng = rng
        self._share = share
        self._tell = tell
        self._on_result = on_result
        self._convict = convict
        self._ticket_for = ticket_for
        self._tasks = Tasks("audit")

    def __len__(self) -> int:
        """Audits under way."""
        return len(self._tasks)

    def consider(self, call: Call) -> None:
        """Perhaps begin an audit of a hop of this ended call. Never waits."""
        if call.outcome != "ok" or len(self._tasks) >= AT_ONCE or self._rng.random() >= self._share:
            return
        hop = self._rng.choice(call.tries[-1].plan.decision.route.hops)
        self._tasks.start(self.audit(hop), f"audit {hop.node_id}")

    async def audit(self, hop: Hop) -> Verdict | None:
        """None: nobody to compare with, or somebody did not answer."""
        holders = self._holders(hop)
        if len(holders) < 2:
            return None
        outputs: dict[str, Rows] = {}
        verdict = None
        for node in holders[:3]:
            rows = await self._forward(node, hop)
            if rows is None:
                self._on_result("unanswered")
                return None
            outputs[node.node_id] = rows
            if len(outputs) < 2:
                continue
            verdict = await asyncio.to_thread(judge, outputs, TOLERANCE[node.dtype])
            if verdict.agree:
                break
        assert verdict is not None
        self._report(hop, list(outputs), verdict)
        return verdict

    def _holders(self, hop: Hop) -> list[Node]:
        """The audited node first, then others of the same weights and dtype in random order."""
        lease = self._fleet.get(hop.node_id)
        if lease is None:
            return []
        mine = lease.node
        others = [
            node
            for node in self._fleet.nodes(mine.model_key)
            if node.node_id != mine.node_id
            and (node.revision, node.dtype, node.state) == (mine.revision, mine.dtype, "ready")
            and node.shard.holds(hop.start_layer, hop.end_layer)
        ]
        self._rng.shuffle(others)
        return [mine, *others]

    async def _forward(self, node: Node, hop: Hop) -> Rows | None:
        headers = {api.START_LAYER: str(hop.start_layer), api.END_LAYER: str(hop.end_layer)}
        if self._ticket_for is not None:
            headers[api.TICKET] = self._ticket_for(node.wallet)
        body: dict[str, Any] = {"json": list(PROBE_TOKENS)}
        if hop.start_layer > 0:
            rows = probe_rows(node.hidden_size, node.dtype)
            headers |= {api.DTYPE: rows.dtype, api.SHAPE: f"{rows.shape[0]},{rows.shape[1]}"}
            headers["Content-Type"] = "application/octet-stream"
            body = {"data": bytes(rows.data)}
        try:
            async with asyncio.timeout(FORWARD_S):
                async with self._http.post(dialled_url(node.url) + api.FORWARD, headers=headers, **body) as answer:
                    if answer.status != 200 or (answer.content_length or MAX_ANSWER_BYTES + 1) > MAX_ANSWER_BYTES:
                        return None
                    return _rows_of(answer.headers, await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.info("audit unanswered node=%s reason=%s", node.node_id, error or "it took too long")
            return None

    def _report(self, hop: Hop, asked: Sequence[str], verdict: Verdict) -> None:
        layers = f"layers {hop.start_layer}-{hop.end_layer}"
        result = "agreed" if verdict.agree else "convicted" if verdict.culprit else "disagreed"
        self._on_result(result)
        log.info("audit %s %s nodes=%s difference=%.3g", result, layers, ",".join(asked), verdict.worst)
        if verdict.agree:
            return
        text = f"{' and '.join(asked[:2])} differ by {verdict.worst:.3g} on {layers}"
        if verdict.culprit:
            text += f"; a third holder contradicts {verdict.culprit}"
            self._convict(NodeId(verdict.culprit), text)
        data = {"nodes": list(asked), "difference": min(verdict.worst, 1e9)}
        self._tell(f"audit.{result}", problem=True, node_id=verdict.culprit or hop.node_id, text=text, data=data)

    async def close(self) -> None:
        await self._tasks.close()


def _rows_of(headers: Any, data: bytes) -> Rows | None:
    """An answer of /v1/forward; None if it is not well-formed."""
    parts, dtype = headers.get(api.SHAPE, "").split(","), headers.get(api.DTYPE, "")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) < 8 for p in parts) or dtype not in TOLERANCE:
        return None
    rows = Rows(dtype, (int(parts[0]), int(parts[1])), data)
    return rows if rows.size_bytes == len(data) else None
