"""The two ends' side of a relay's splice: dial its port, say what for, and get a plain socket to the other end.

Blocking-free socket calls with exact reads, so that not one byte of the other end is swallowed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from daemons.kit.identity import WalletKey
from daemons.kit.tls import HANDSHAKE_S, encode_certificate, pinned_context, read_certificate
from meshnet.domain.errors import FrameError, Unreachable
from meshnet.wire.relay import (
    LENGTH_BYTES,
    Greeting,
    Reach,
    Refused,
    RelayAddress,
    Spliced,
    Take,
    ToCaller,
    decode,
    frame_length,
    framed,
    reach_proof,
)

T = TypeVar("T")

CheckAddress = Callable[[str], object]
"""Raises MeshnetError when this IP address may not be dialled."""

SPLICE_S = 8.0
"""From dialling the relay to the splice: two connects (the node dials back, at most 5 s) and four messages."""


async def reach(
    address: RelayAddress, key: WalletKey, ticket: str, check: CheckAddress | None = None
) -> tuple[socket.socket, bytes]:
    """A socket to the node at ``address``, and the node's certificate (DER, its key checked against the wallet).

    Speak TLS with ``pinned_context("client", …)`` on it: the relay reads along. Raises Unreachable naming the address.
    """

    async def ask(sock: socket.socket) -> bytes:
        greeting = await _receive(sock, Greeting | Refused)
        if isinstance(greeting, Refused):
            raise Unreachable(f"The relay refuses: {greeting.message}", code=greeting.code)
        message = Reach(
            target=address.wallet,
            ticket=ticket,
            public_key=key.public_key.hex(),
            certificate=encode_certificate(key.certificate),
            proof=key.private.sign(reach_proof(greeting, address.wallet, ticket)).hex(),
        )
        spliced = await _exchange(sock, message)
        return read_certificate(spliced.certificate, address.wallet)

    return await _dialled(address.host, address.port, ask, check)


async def take(host: str, port: int, token: str) -> socket.socket:
    """A socket to whoever asked for us; the other end speaks first. Raises Unreachable."""

    async def ask(sock: socket.socket) -> None:
        greeting = await _receive(sock, Greeting | Refused)
        if isinstance(greeting, Refused):
            raise Unreachable(f"The relay refuses: {greeting.message}", code=greeting.code)
        await _exchange(sock, Take(token=token))

    return (await _dialled(host, port, ask))[0]


async def accept_spliced(
    server: Callable[[], asyncio.BaseProtocol], sock: socket.socket, key: WalletKey, caller: bytes
) -> asyncio.BaseTransport:
    """Hand a spliced socket to our own HTTP server as if it had come in by the door, with TLS pinned to ``caller``.

    Raises Unreachable when the other end does not prove that key.
    """
    loop = asyncio.get_running_loop()
    context = pinned_context("server", key.tls_file, caller)
    try:
        transport, _ = await loop.connect_accepted_socket(server, sock, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)
    except OSError as error:
        sock.close()
        raise Unreachable(f"The TLS handshake over the relay failed: {error}") from None
    return transport


async def _dialled(
    host: str, port: int, ask: Callable[[socket.socket], Awaitable[T]], check: CheckAddress | None = None
) -> tuple[socket.socket, T]:
    where = f"{host}:{port}"
    sock: socket.socket | None = None
    kept = False
    try:
        async with asyncio.timeout(SPLICE_S):
            sock = await connect(host, port, check)
            answer = await ask(sock)
        kept = True
        return sock, answer
    except TimeoutError:
        raise Unreachable(f"The relay at {where} does not answer within {SPLICE_S:g} s.") from None
    except (OSError, FrameError) as error:
        raise Unreachable(f"The relay at {where} closed the connection: {error}.") from None
    finally:
        if sock is not None and not kept:
            sock.close()


async def connect(host: str, port: int, check: CheckAddress | None = None) -> socket.socket:
    """To the first of the host's addresses that answers. Raises OSError; MeshnetError where ``check`` refuses one."""
    loop = asyncio.get_running_loop()
    last: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if check is not None:
            check(str(address[0]))
        sock = socket.socket(family, kind, protocol)
        connected = False
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = True
            return sock
        except OSError as error:
            last = error
        finally:
            if not connected:
                sock.close()
    raise last


async def _exchange(sock: socket.socket, message: Reach | Take) -> Spliced:
    await asyncio.get_running_loop().sock_sendall(sock, framed(message))
    answer = await _receive(sock, ToCaller)
    if isinstance(answer, Spliced):
        return answer
    if isinstance(answer, Refused):
        raise Unreachable(f"The relay refuses: {answer.message}", code=answer.code)
    raise FrameError("a second greeting")


async def _receive(sock: socket.socket, into: Any) -> Any:
    length = frame_length(await _exactly(sock, LENGTH_BYTES))
    return decode(await _exactly(sock, length), into)


async def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not part:
            raise FrameError("the connection ended")
        data += part
    return data
