"""API keys and join tokens, and who needs which for what: a table, no IO.

A key's text is ``mnk_<id>_<secret>`` (a join token's ``mnj_…``). Only the SHA-256 of the secret is kept: the secret has
256 random bits, so no salt and no slow hash is needed, and it is compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from meshnet.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, StartError

Scope = Literal["chat", "read", "admin", "join"]
Profile = Literal["local", "lan", "exposed"]
"""local: loopback, no keys. lan: join token and API keys. exposed: the same, TLS, a join allow-list, rate limits."""
Need = Literal["public", "models", "chat", "read", "admin", "join", "lease", "link", "forward", "files", "peer"]
"""What a route asks of its caller. models: what any OpenAI client must see. join: a signed registration. lease: a
signed request of the node that holds the lease. link: a data link, where tickets decide. forward, files: a node's
layers and weights, for a key or a tracker's ticket. peer: another tracker."""

SECRET_BYTES = 32
"""256 bits: cannot be guessed, and lets a plain hash be enough."""
ID_CHARS = 8
"""40 bits: names a key in lists and logs without giving anything of it away."""
_TEXT = re.compile(r"mn[kj]_([a-z2-7]{8})_([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_SCOPES: dict[Need, frozenset[Scope]] = {
    "models": frozenset({"chat", "read", "admin"}),
    "chat": frozenset({"chat", "admin"}),
    "read": frozenset({"read", "admin"}),
    "admin": frozenset({"admin"}),
    "join": frozenset({"join", "admin"}),
    "forward": frozenset({"admin"}),
    "files": frozenset({"join", "admin"}),
    "peer": frozenset({"admin"}),
}
"""Any one of these suffices. A need that is not here asks for no key: a signature or a ticket proves the caller."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key. ``created`` and ``revoked`` are Unix seconds; ``secret_hash`` is hex SHA-256."""

    key_id: str
    name: str
    scopes: frozenset[Scope]
    secret_hash: str
    created: float
    revoked: float | None = None

    @property
    def is_live(self) -> bool:
        return self.revoked is None


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request has to show: any of ``scopes`` on a live key (none: no key), and whether it must be signed by a
    wallet."""

    scopes: frozenset[Scope] = frozenset()
    signed: bool = False


class KeyRing:
    """All keys of one daemon, live and revoked; changes return a new ring."""

    def __init__(self, records: Iterable[KeyRecord] = ()) -> None:
        self._records = {record.key_id: record for record in records}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> tuple[KeyRecord, ...]:
        return tuple(sorted(self._records.values(), key=lambda record: (record.created, record.key_id)))

    def has_live(self) -> bool:
        return any(record.is_live for record in self._records.values())

    def find(self, text: str) -> KeyRecord | None:
        """The live key this text is, or None. Takes the same steps whether the id exists or not."""
        match = _TEXT.fullmatch(text)
        key_id, secret = match.groups() if match else ("", "")
        record = self._records.get(key_id)
        expected = record.secret_hash if record is not None else _NOBODY
        is_same = hmac.compare_digest(_hash(secret), expected)
        return record if is_same and record is not None and record.is_live else None

    def add(self, record: KeyRecord) -> KeyRing:
        """Raises Conflict when a live key has this name already: revoking by name must hit one."""
        for other in self._records.values():
            if other.is_live and other.name == record.name:
                raise Conflict(f"There is a key named {record.name!r} already ({other.key_id}); revoke it first.")
        return KeyRing([*self._records.values(), record])

    def revoke(self, name_or_id: str, now: float) -> KeyRing:
        """Raises NotFound when no live key has this name or id."""
        for record in self._records.values():
            if record.is_live and name_or_id in (record.name, record.key_id):
                return KeyRing([*self._records.values(), replace(record, revoked=now)])
        raise NotFound(f"No live key is named {name_or_id!r}; see: meshnet keys list.")


def make_key(name: str, scopes: frozenset[Scope], secret: bytes, now: float) -> tuple[str, KeyRecord]:
    """A key's text, to be shown once, and its record. ``secret`` is SECRET_BYTES of the caller's randomness."""
    if len(secret) != SECRET_BYTES:
        raise InvalidRequest(f"A key's secret has {SECRET_BYTES} bytes, not {len(secret)}.")
    if not scopes or ("join" in scopes and len(scopes) > 1):
        raise InvalidRequest(f"A key has scopes of chat, read, admin, or is a join token; got {sorted(scopes)}.")
    text = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    key_id = base64.b32encode(hashlib.sha256(b"meshnet-key-id" + secret).digest()).decode().lower()[:ID_CHARS]
    record = KeyRecord(key_id, name, scopes, _hash(text), now)
    return f"{'mnj' if 'join' in scopes else 'mnk'}_{key_id}_{text}", record


def demand(profile: Profile, need: Need) -> Demand:
    """The table: what a request to a route of this need must show under this profile."""
    signed = need in ("join", "lease")
    if profile == "local":
        return Demand(signed=signed)
    return Demand(_SCOPES.get(need, frozenset()), signed)


def check_key(wanted: Demand, key: KeyRecord | None) -> None:
    """Raises Forbidden: code "unauthorized" (401) without a live key, "wrong_scope" (403) with a lesser one."""
    if not wanted.scopes:
        return
    if key is None:
        raise Forbidden("This needs an API key: Authorization: Bearer mnk_…", code="unauthorized")
    if not key.scopes & wanted.scopes:
        raise Forbidden(
            f"Key {key.key_id} has scope {', '.join(sorted(key.scopes))}; "
            f"this needs {' or '.join(sorted(wanted.scopes))}.",
            code="wrong_scope",
        )


def check_bind(host: str, profile: Profile, *, has_keys: bool, has_tls: bool) -> None:
    """Raises StartError, saying which flag would mend it, when listening on ``host`` would let strangers in.

    ``has_tls``: its own certificate, or a trusted proxy that ends TLS before it.
    """
    if profile == "local":
        if host not in _LOOPBACK:
            raise StartError(
                f"Listening on {host} would let anybody in. Make keys (meshnet keys create) and use --profile lan "
                "or --profile exposed, or stay at --host 127.0.0.1 and come by SSH."
            )
        return
    if not has_keys:
        raise StartError(f"Profile {profile} needs keys. Run: meshnet keys create me --scope admin")
    if profile == "exposed" and not has_tls:
        raise StartError(
            "Profile exposed needs TLS: --tls-certificate and --tls-key (meshnet ca init makes them), "
            "or --trusted-proxy with the address of the proxy that ends it."
        )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
