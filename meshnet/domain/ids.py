"""Ids: what they look like and how they are taken apart. All are opaque strings to everyone else."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NewType

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.shards import Shard

ModelKey = NewType("ModelKey", str)
"""Short name of a model, ``smollm2-135m``: what clients put in ``model``."""
Revision = NewType("Revision", str)
"""Hash of a model's weights manifest: with the model_key it names exact weights."""
Wallet = NewType("Wallet", str)
"""Fingerprint of a node's Ed25519 public key: 20 base32 characters, 100 bits."""
NodeId = NewType("NodeId", str)
"""``<wallet>.<shard_start>-<shard_end>``: another shard is another node_id."""
CallId = NewType("CallId", str)
"""``call-<hex>``: one chat request as the tracker saw it."""

# Model keys travel in URLs, file names and signatures: nothing in them may need quoting there.
_MODEL_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_NODE_ID = re.compile(r"([a-z0-9]{1,64})\.(\d{1,4})-(\d{1,4})")

WALLET_CHARS = 20
"""100 bits of the key's hash: nobody finds a second key for a given wallet, and it still fits a line twice."""
FINGERPRINT_CHARS = 8
"""How much of a wallet people see: 40 bits tell the nodes of one mesh apart and fit a column."""


def wallet_of(public_key: bytes) -> Wallet:
    """The fingerprint of a raw Ed25519 public key: the first 20 characters of lower-case base32 of its SHA-256."""
    return Wallet(base64.b32encode(hashlib.sha256(public_key).digest()).decode().lower()[:WALLET_CHARS])


def make_node_id(wallet: Wallet, shard: Shard) -> NodeId:
    return NodeId(f"{wallet}.{shard}")


def parse_node_id(node_id: str) -> tuple[Wallet, Shard]:
    """Wallet and shard of a node_id. Raises InvalidRequest with the offending text."""
    match = _NODE_ID.fullmatch(node_id)
    if match is None:
        raise InvalidRequest(f"{node_id!r} is not a node_id; it looks like <wallet>.<shard_start>-<shard_end>.")
    return Wallet(match[1]), Shard(int(match[2]), int(match[3]))


def is_model_key(text: str) -> bool:
    return _MODEL_KEY.fullmatch(text) is not None


def short_node_id(node_id: str) -> str:
    """A node_id as people read it: the wallet cut to its fingerprint, the shard kept."""
    wallet, dot, shard = node_id.partition(".")
    return f"{wallet[:FINGERPRINT_CHARS]}{dot}{shard}"
