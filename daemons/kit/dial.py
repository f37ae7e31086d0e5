"""How daemons dial each other: one connector for direct and relayed peers, which checks where it connects to.

Give relayed urls through ``wire.relay.dialled_url``; everything else of aiohttp works as it does for a direct peer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from daemons.kit.identity import WalletKey
from daemons.kit.splice import CheckAddress, connect, reach
from daemons.kit.tls import HANDSHAKE_S, peer_wallet, pinned_context, unpinned_client
from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import Wallet
from meshnet.wire.relay import RelayAddress, parse_http_host

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

TicketFor = Callable[[Wallet], str | None]
"""The ticket that lets us link to this wallet now, or None."""


class CheckedResolver(AbstractResolver):
    """Names are resolved once and every address is checked; the connection goes to what was checked."""

    def __init__(self, check: CheckAddress, inner: AbstractResolver) -> None:
        self._check = check
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            _checked(self._check, result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


class MeshConnector(aiohttp.TCPConnector):
    """A TCPConnector that also reaches nodes through relays, with TLS pinned to their wallets inside the splice."""

    def __init__(
        self,
        key: WalletKey,
        ticket_for: TicketFor,
        check: CheckAddress | None = None,
        resolver: AbstractResolver | None = None,
        **options: Any,
    ) -> None:
        inner = resolver or ThreadedResolver()
        super().__init__(resolver=CheckedResolver(check, inner) if check else inner, use_dns_cache=False, **options)
        self._key = key
        self._ticket_for = ticket_for
        self._check = check

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        host = req.url.raw_host or ""
        address = parse_http_host(host)
        if address is None:
            if self._check is not None and _is_address(host):
                _checked(self._check, host)
            return await super()._create_connection(req, traces, timeout)
        try:
            return await (self._dial_pinned(address) if address.scheme == "tls" else self._reach(address))
        except (MeshnetError, OSError) as error:
            raise aiohttp.ClientConnectorError(req.connection_key, OSError(0, str(error))) from error

    async def _reach(self, address: RelayAddress) -> ResponseHandler:
        ticket = self._ticket_for(address.wallet)
        if ticket is None:
            raise OSError(f"there is no ticket for {address.wallet}")
        sock, certificate = await reach(address, self._key, ticket, self._check)
        return await self._shake_hands(sock, pinned_context("client", self._key.tls_file, certificate), address)

    async def _dial_pinned(self, address: RelayAddress) -> ResponseHandler:
        """The node's own TLS port: it must prove its wallet's key. Ours is proved by HELLO, since a server cannot ask
        for certificates that it does not know."""
        sock = await connect(address.host, address.port, self._check)
        return await self._shake_hands(sock, unpinned_client(), address)

    async def _shake_hands(
        self, sock: socket.socket, context: ssl.SSLContext, address: RelayAddress
    ) -> ResponseHandler:
        """TLS over ``sock``, which is closed unless the other end has this address's key. Raises OSError."""
        try:
            transport, protocol = await asyncio.get_running_loop().create_connection(
                self._factory, sock=sock, ssl=context, server_hostname="", ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:
            sock.close()
            raise
        if peer_wallet(transport.get_extra_info("ssl_object")) != address.wallet:
            transport.abort()
            raise OSError(f"another key than {address.wallet}'s answers")
        return protocol


def _checked(check: CheckAddress, address: str) -> None:
    try:
        check(address)
    except MeshnetError as error:
        raise OSError(0, error.message) from error


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
