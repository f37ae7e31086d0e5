"""Nodes asked whether they reach another one: the tracker's line says little about theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp
import msgspec

from daemons.kit.link import CONNECT_S, Link, Links
from daemons.kit.proof import Prover
from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import Node
from meshnet.wire.frames import Hidden
from meshnet.wire.messages import Dial, Dialled, Hello

log = logging.getLogger(__name__)

ANSWER_S = CONNECT_S + 0.5
"""From the question to the answer: the witness dials for CONNECT_S at most."""

_Question = tuple[str, str, str]


class Witnesses:
    """Asks over links of its own, so that calls' links are left alone."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        http: aiohttp.ClientSession,
        now: Callable[[], float],
        prover: Prover | None = None,
    ) -> None:
        self._links = Links(lambda: _as_witness(hello()), self._on_message, lambda link: None, http, now, prover)
        self._asked: dict[_Question, asyncio.Future[Dialled]] = {}

    async def ask(self, witness: Node, node_id: NodeId, url: str) -> Dialled | None:
        """What ``witness`` found; None when it does not say."""
        question = (witness.node_id, node_id, url)
        if question in self._asked:
            return None
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        try:
            link = await self._links.to(witness.node_id, witness.url, CONNECT_S)
            link.post(Dial(node_id, url))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except (MeshnetError, TimeoutError) as error:
            log.info("witness silent witness=%s node=%s reason=%s", witness.node_id, node_id, error)
            return None
        finally:
            del self._asked[question]
            await self._let_go(witness.node_id)

    async def _let_go(self, witness: str) -> None:
        link = self._links.get(witness)
        if link is not None and not any(of == witness for of, _, _ in self._asked):
            await link.shut()

    def _on_message(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        if isinstance(message, Dialled):
            asked = self._asked.get((link.peer_id, message.node_id, message.url))
            if asked is not None and not asked.done():
                asked.set_result(message)

    async def close(self) -> None:
        await self._links.close()


def _as_witness(hello: Hello) -> Hello:
    """Under an id of its own: a second link of one peer would replace the first."""
    return msgspec.structs.replace(hello, peer_id=f"{hello.peer_id}.witness")
