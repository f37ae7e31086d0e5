"""A head that speaks real links and answers by script: what the tracker is tested against.

Its text is a function of (call's seed, token index), so that a repeat, a gap or another seed shows.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
from aiohttp import web

from daemons.kit.link import Link, Links
from daemons.kit.tasks import Tasks
from daemons.kit.web import Site, make_app, serve
from meshnet.domain.errors import MeshnetError
from meshnet.wire import api
from meshnet.wire.messages import Cancel, Delta, Failed, Finished, Generate, Hello, Probe, Probed

PROMPT_IDS = (1, 2, 3, 4, 5)
Script = Callable[["Talk"], Awaitable[None]]


def word(seed: int, index: int) -> str:
    """Token ``index`` of the answer to a request with this seed."""
    return f"{hashlib.sha256(f'{seed}:{index}'.encode()).hexdigest()[:4]} "


def whole_text(seed: int, tokens: int) -> str:
    return "".join(word(seed, index) for index in range(tokens))


class Talk:
    """One GENERATE as the script sees it."""

    def __init__(self, head: FakeHead, link: Link, generate: Generate) -> None:
        self.head, self.link, self.generate = head, link, generate
        self.seed = generate.request.sampling.seed
        self.next = len(generate.produced_ids)
        self.cancelled = asyncio.Event()

    async def send(self, message: msgspec.Struct) -> None:
        await self.link.send(message)

    async def say(self, tokens: int, hop_us: tuple[tuple[int, int], ...] = ()) -> None:
        """The next tokens, one delta each; the first of a session carries the prompt's ids."""
        g = self.generate
        for index in range(self.next, self.next + tokens):
            text = word(self.seed, index)
            if index == len(g.produced_ids):
                # As a real head: what was sent already is cut off by characters, not by tokens.
                text = whole_text(self.seed, index + 1)[g.chars_sent :]
            first = index == len(g.produced_ids)
            await self.send(
                Delta(
                    session=g.session,
                    attempt=g.attempt,
                    text=text,
                    token_ids=(100 + index,),
                    prompt_token_ids=PROMPT_IDS if first else None,
                    hop_us=hop_us,
                )
            )
        self.next += tokens

    async def finish(self, reason: str = "stop") -> None:
        g = self.generate
        await self.send(
            Finished(
                session=g.session,
                attempt=g.attempt,
                finish_reason=reason,  # type: ignore[arg-type]
                prompt_tokens=len(PROMPT_IDS),
                completion_tokens=self.next,
            )
        )

    async def fail(self, code: str, message: str = "it broke", culprit: str | None = None, param: str | None = None):
        g = self.generate
        await self.send(
            Failed(session=g.session, attempt=g.attempt, code=code, message=message, culprit=culprit, param=param)
        )

    async def hang(self) -> None:
        """Say nothing until cancelled."""
        await self.cancelled.wait()


def answering(total: int, hop_us: tuple[tuple[int, int], ...] = ()) -> Script:
    """Answers up to ``total`` tokens, counting those of earlier attempts."""

    async def script(talk: Talk) -> None:
        await talk.say(total - talk.next, hop_us)
        await talk.finish()

    return script


class FakeHead:
    """Listens on a free port; ``script`` may be changed at any time."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.script: Script = answering(8)
        self.generated: list[Generate] = []
        self.cancels: list[Cancel] = []
        self.probes: list[Probe] = []
        self.answers_probes = True
        self.knows_sessions = True
        self._talks: dict[tuple[int, int], Talk] = {}
        self._tasks = Tasks(f"head {node_id}")
        self._heard = asyncio.Condition()

    async def __aenter__(self) -> FakeHead:
        self._http = aiohttp.ClientSession()
        hello = Hello(peer_id=self.node_id, role="node", boot="boot-of-fake", wire_version=api.WIRE_VERSION)
        loop = asyncio.get_running_loop()
        self.links = Links(lambda: hello, self._on_message, self._on_closed, self._http, loop.time)
        self._site: Site = await serve(make_app([web.get(api.LINK, self.links.accept)], 1 << 20), "127.0.0.1", 0)
        self.url = self._site.url
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self.links.close()
        await self._site.close()
        await self._http.close()

    async def break_links(self) -> None:
        """As a line that is cut for a moment: every link ends at once."""
        await self.links.close()

    async def die(self) -> None:
        """As a killed process: nothing listens any more, and every link ends."""
        for site in list(self._site.runner.sites):
            await site.stop()
        await self.links.close()

    def _on_message(self, link: Link, message: object) -> None:
        match message:
            case Generate():
                self.generated.append(message)
                talk = self._talks[message.session, message.attempt] = Talk(self, link, message)
                self._tasks.start(self._play(talk), "talk")
            case Cancel():
                self.cancels.append(message)
                if talk := self._talks.get((message.session, message.attempt)):
                    talk.cancelled.set()
            case Probe():
                self.probes.append(message)
                if self.answers_probes:
                    reply = Probed(
                        session=message.session, attempt=message.attempt, known=self.knows_sessions, computing=True
                    )
                    self._tasks.start(link.send(reply), "probed")
        self._tasks.start(self._announce(), "announce")

    async def _announce(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    def _on_closed(self, link: Link) -> None:
        for talk in self._talks.values():
            if talk.link is link:
                talk.cancelled.set()

    async def _play(self, talk: Talk) -> None:
        try:
            await self.script(talk)
        except MeshnetError:
            talk.cancelled.set()  # the tracker hung up first: some tests want that

    async def until(self, true: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait for something this head was told."""
        async with asyncio.timeout(timeout_s), self._heard:
            await self._heard.wait_for(true)
