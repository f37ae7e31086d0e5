"""Who may come in: the tracker's guard, and what a signed request must say of its signer."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from daemons.kit.guard import Guard, caller_of, guarded_names
from daemons.tracker.parts import Clock, Identity
from daemons.tracker.settings import TrackerConfig
from meshnet.domain.errors import Forbidden, InvalidRequest
from meshnet.domain.ids import Wallet
from meshnet.domain.keys import KeyRing
from meshnet.wire import access
from meshnet.wire.relay import check_node_url


def make_guard(config: TrackerConfig, identity: Identity, clock: Clock, keys: Callable[[], KeyRing]) -> Guard:
    """The rules of ``config.profile``. Signatures are as old as ``clock.wall`` says."""
    has_any_name = config.profile != "local" and not config.public_names
    return Guard(
        config.profile,
        access.TRACKER,
        keys,
        clock.now,
        clock.wall,
        tracker=f"{identity.tracker_id}/{identity.boot}",
        names=None if has_any_name else guarded_names(config.host, config.public_names),
        join_allow=config.allowed_wallets(),
        proxies=config.proxies(),
    )


def check_url(url: str, config: TrackerConfig) -> None:
    """Raises InvalidRequest(param="url") when no node of this profile may be there. Names are checked when they are
    dialled: what they resolve to now may be something else then."""
    check_node_url(url)
    if config.profile == "exposed" and not url.startswith(("tls://", "relay://")):
        raise InvalidRequest(
            f"{url} is no address of an exposed mesh: nodes of it speak TLS (--profile exposed) or come by a relay.",
            code="bad_address",
            param="url",
        )
    try:
        host = urlsplit(url).hostname or ""
        ip_address(host)
    except ValueError:
        return
    config.check_address(host)


def require_signer(request: web.Request, wallet: str) -> None:
    """Raises Forbidden unless ``wallet`` itself signed this request."""
    signed = caller_of(request).signed
    if signed is None:
        raise Forbidden("This request must be signed by the node's wallet.", code="unsigned")
    if signed.wallet != Wallet(wallet):
        raise Forbidden(f"{signed.wallet} signed what is said of {wallet}.", code="not_yours")
