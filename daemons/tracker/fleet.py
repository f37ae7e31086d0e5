"""Leases: which nodes are here, what they claim and when they were last heard. The only place that changes them.

Knows nothing of calls and routes. Ages are monotonic, so a wall clock that jumps ends and revives nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from daemons.tracker.twins import Twins
from meshnet.domain.errors import Conflict, EpochChanged, InvalidRequest, NotFound, Overloaded
from meshnet.domain.ids import ModelKey, NodeId, Revision, Wallet, make_node_id, wallet_of
from meshnet.domain.nodes import (
    HEARTBEAT_INTERVAL_S,
    OUT_AFTER_MISSED,
    SUSPECT_AFTER_MISSED,
    HardwareProfile,
    Node,
)
from meshnet.domain.shards import Shard
from meshnet.wire.messages import HeartbeatRequest, RegisterRequest

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""A heartbeat counts as missed this long after it was due: nodes jitter, and loops of a busy box come late."""
MAX_LEASES = 10_000
"""Nodes of one tracker. A lease is about 3 KiB; beyond this somebody registers for fun."""

REMEMBER_S = 600.0
"""A model whose last node left stays known this long: asked for, it has no route; it is not unknown."""
EPOCH_S = 3600.0
"""A wallet without a lease keeps its epoch this long, so that nothing made for an old lease fits a new one: signatures
hold a minute, calls take minutes. Kept for ever, wallets made for fun would fill the memory."""

LeaseId = tuple[NodeId, int]
"""(node_id, epoch): the same node under another epoch is another process or shard, or came back."""
ChangeKind = Literal["joined", "left", "changed", "quarantined", "unheard"]


@dataclass(frozen=True, slots=True)
class Lease:
    """One live registration: the node as routing sees it, and what it claimed and last reported in full."""

    node: Node
    claim: RegisterRequest
    beat: HeartbeatRequest | None = None
    clock_is_off: bool = False
    """Since its last heartbeat that was taken, one came that was signed at another time than it came."""

    @property
    def prefill_tps(self) -> float:
        said = self.beat.prefill_tokens_per_sec if self.beat is not None else None
        return said if said is not None else self.claim.prefill_tokens_per_sec


@dataclass(frozen=True, slots=True)
class Change:
    """A lease began, ended, or another shard, weights or state came with it. ``topology`` is true when routes changed:
    a join, a leave or another shard; not a re-registration of the same."""

    kind: ChangeKind
    node: Node
    reason: str
    topology: bool = True
    new_process: bool = False
    """Another boot than the lease before, if there was one."""


class Fleet:
    """All leases, at most one per wallet."""

    def __init__(self, now: Callable[[], float], heartbeat_s: float = HEARTBEAT_INTERVAL_S) -> None:
        self._now = now
        self.heartbeat_s = heartbeat_s
        self.version = 0
        """Rises whenever something changes that routing reads of a node (its age apart)."""
        self._leases: dict[NodeId, Lease] = {}
        self._by_wallet: dict[Wallet, NodeId] = {}
        self._epochs: dict[Wallet, int] = {}
        self._ended_at: dict[Wallet, float] = {}
        """When the lease of each wallet with an epoch and no lease ended."""
        self._twins = Twins(now)
        self._addresses: dict[Wallet, str] = {}
        """Where each wallet with a lease registered from."""
        self.max_per_address = 0
        """Nodes that one address may have here; 0: no bound."""
        self._departed: dict[ModelKey, Node] = {}
        """Of each model the node that left last, its ``heard_at`` being the time it left."""
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> None:
        """``listener`` is called after each change, in order, and must not wait or raise."""
        self._listeners.append(listener)

    def register(self, claim: RegisterRequest, address: str = "") -> Lease:
        """A new lease, replacing the wallet's former one, asked for from ``address``. Raises InvalidRequest naming the
        field that is not true, Overloaded where an address has too many, Conflict(code="wallet_in_use") while another
        process has the wallet too."""
        _check_claim(claim)
        wallet = Wallet(claim.wallet)
        self._check_room(wallet, address)
        if wallet not in self._by_wallet and len(self._leases) >= MAX_LEASES:
            raise InvalidRequest(f"This tracker keeps {MAX_LEASES} nodes and takes no more.", code="too_many_nodes")
        self._check_twins(wallet, claim)
        self._addresses[wallet] = address
        self._ended_at.pop(wallet, None)
        self._epochs[wallet] = self._epochs.get(wallet, 0) + 1
        lease = Lease(_node_of(claim, self._epochs[wallet], self._now()), claim)
        before = self._leases.pop(self._by_wallet[wallet], None) if wallet in self._by_wallet else None
        self._leases[lease.node.node_id] = lease
        self._by_wallet[wallet] = lease.node.node_id
        self._tell_registered(before, lease)
        return lease

    def _check_room(self, wallet: Wallet, address: str) -> None:
        others = sum(self._addresses.get(other) == address for other in self._by_wallet if other != wallet)
        if address and self.max_per_address and others >= self.max_per_address:
            raise Overloaded(f"{others} nodes at {address} are here already.", code="too_many_nodes", retry_after_s=60)

    def _check_twins(self, wallet: Wallet, claim: RegisterRequest) -> None:
        """A lease that two processes take from each other serves neither: it stays, takes nothing new and is shown,
        until one of them stops."""
        begins = self._twins.claim(wallet, claim.boot, claim.url)
        if not self._twins.is_quarantined(wallet):
            return
        urls = " and ".join(self._twins.urls(wallet)[:2])
        if (lease := self._leases.get(self._by_wallet.get(wallet, NodeId("")))) is not None:
            node = replace(lease.node, state="draining", heard_at=self._now())
            self._leases[node.node_id] = replace(lease, node=node)
            if begins:
                self._tell(
                    Change("quarantined", node, f"two processes have its wallet, at {urls}: stop one", topology=False)
                )
        raise _in_use(wallet, urls)

    def is_quarantined(self, wallet: str) -> bool:
        """Whether two processes were seen to take this wallet's lease from each other; ends when one stops."""
        return self._twins.is_quarantined(Wallet(wallet))

    def _tell_registered(self, before: Lease | None, lease: Lease) -> None:
        node = lease.node
        restarted = before is not None and before.claim.boot != lease.claim.boot
        if before is None:
            self._tell(Change("joined", node, "registered", new_process=True))
        elif _place(before.node) != _place(node):
            self._departed[before.node.model_key] = replace(before.node, heard_at=self._now())
            self._tell(Change("left", before.node, f"moved to {node.node_id} of {node.model_key}"))
            self._tell(Change("joined", node, f"moved from {before.node.node_id}", new_process=restarted))
        else:
            reason = "restarted" if restarted else "registered again"
            self._tell(Change("changed", node, reason, topology=False, new_process=restarted))

    def heartbeat(self, node_id: str, beat: HeartbeatRequest) -> Lease:
        """Raises NotFound(code="unknown_lease"), EpochChanged or Conflict(code="wallet_in_use"): each time the node
        registers again."""
        lease = self._leases.get(NodeId(node_id))
        if lease is None:
            raise NotFound(f"{node_id} has no lease here; register again.", code="unknown_lease")
        if beat.epoch != lease.node.epoch:
            raise EpochChanged(f"{node_id} has a lease of epoch {lease.node.epoch}, not {beat.epoch}.")
        if self.is_quarantined(lease.node.wallet):
            raise _in_use(lease.node.wallet, " and ".join(self._twins.urls(lease.node.wallet)[:2]))
        benchmark = beat.benchmark_tokens_per_sec
        node = replace(
            lease.node,
            state=beat.state,
            queue_depth=beat.queue_depth,
            sessions=beat.in_flight,
            kv_free_bytes=beat.kv_free_bytes,
            benchmark_tokens_per_sec=lease.node.benchmark_tokens_per_sec if benchmark is None else benchmark,
            tail_layers=lease.node.tail_layers if beat.tail_layers is None else beat.tail_layers,
            heard_at=self._now(),
        )
        self._leases[node.node_id] = updated = Lease(node, lease.claim, _keep_measures(lease.beat, beat))
        if _work(node) != _work(lease.node):
            self.version += 1
        if node.state != lease.node.state:
            self._tell(Change("changed", node, f"{lease.node.state} -> {node.state}", topology=False))
        return updated

    def call_ended(self, node_id: NodeId, epoch: int, began_at: float) -> None:
        """A call of ours that this lease served since ``began_at`` is over. A heartbeat that came meanwhile counted it:
        without this the node would look busy with it until the next one."""
        lease = self._leases.get(node_id)
        if lease is None or lease.node.epoch != epoch or not lease.node.queue_depth or lease.node.heard_at < began_at:
            return
        node = replace(lease.node, queue_depth=lease.node.queue_depth - 1)
        self._leases[node_id] = replace(lease, node=node)
        self.version += 1

    def leave(self, node_id: str, epoch: int | None = None) -> None:
        """Ends the lease; of another epoch it is another process's lease and stays. Raises NotFound."""
        lease = self._leases.get(NodeId(node_id))
        if lease is None or (epoch is not None and lease.node.epoch != epoch):
            raise NotFound(f"{node_id} has no such lease here.", code="unknown_lease")
        self._end(lease, "left")

    def tick(self) -> list[Node]:
        """End the leases that missed OUT_AFTER_MISSED heartbeats; returns their nodes."""
        out = [lease for lease in self._leases.values() if self.missed(lease.node) >= OUT_AFTER_MISSED]
        for lease in out:
            self._end(lease, f"silent for {self._now() - lease.node.heard_at:.0f} s")
        self._twins.forget(self._by_wallet)
        self._forget()
        return [lease.node for lease in out]

    def _forget(self) -> None:
        """Drop what is too old to matter of models and wallets that are gone."""
        now, remembered = self._now(), self._remembered()
        for wallet in [wallet for wallet, at in self._ended_at.items() if now - at > EPOCH_S]:
            del self._ended_at[wallet], self._epochs[wallet]
        self._departed = {key: node for key, node in self._departed.items() if key in remembered}

    def _end(self, lease: Lease, reason: str) -> None:
        del self._leases[lease.node.node_id]
        del self._by_wallet[lease.node.wallet]
        self._addresses.pop(lease.node.wallet, None)
        self._ended_at[lease.node.wallet] = self._now()
        self._departed[lease.node.model_key] = replace(lease.node, heard_at=self._now())
        self._tell(Change("left", lease.node, reason))

    def note(self, node_id: str, reason: str) -> None:
        """Something that routes depend on changed about a node: whoever listens hears of it."""
        lease = self._leases.get(NodeId(node_id))
        if lease is not None:
            self._tell(Change("changed", lease.node, reason, topology=False))

    def clock_off(self, wallet: Wallet, age_s: float) -> None:
        """What this wallet signs looks so old, or (negative) not made yet: it is not heard, and that is said once. Of a
        node whose heartbeats come in time it is an old request that somebody else sent again."""
        lease = self._leases.get(self._by_wallet.get(wallet, NodeId("")))
        if lease is None or lease.clock_is_off or not self.missed(lease.node):
            return
        self._leases[lease.node.node_id] = replace(lease, clock_is_off=True)
        off = f"{abs(age_s):.0f} s {'behind' if age_s > 0 else 'ahead of'} the tracker's"
        self._tell(Change("unheard", lease.node, f"its clock is {off}: set the one that is wrong", topology=False))

    def missed(self, node: Node) -> int:
        """Heartbeats in a row that did not come."""
        late_s = self._now() - node.heard_at - GRACE_S
        return max(0, int(late_s // self.heartbeat_s))

    def is_suspect(self, node: Node) -> bool:
        return self.missed(node) >= SUSPECT_AFTER_MISSED

    def leases(self) -> list[Lease]:
        """All live leases, by node_id."""
        return [self._leases[node_id] for node_id in sorted(self._leases)]

    def nodes(self, model_key: str | None = None) -> list[Node]:
        return [lease.node for lease in self._leases.values() if model_key is None or lease.node.model_key == model_key]

    def get(self, node_id: str) -> Lease | None:
        return self._leases.get(NodeId(node_id))

    def model_keys(self) -> list[ModelKey]:
        """Models that are here, or were within REMEMBER_S."""
        return sorted(self._remembered() | {lease.node.model_key for lease in self._leases.values()})

    def knows(self, model_key: str) -> bool:
        """Whether it is one of ``model_keys``, for every request to ask: ends at the first node that has it."""
        here = any(lease.node.model_key == model_key for lease in self._leases.values())
        return here or model_key in self._remembered()

    def _remembered(self) -> set[ModelKey]:
        return {key for key, node in self._departed.items() if self._now() - node.heard_at <= REMEMBER_S}

    def name_of(self, node_id: NodeId) -> str:
        """What its owner calls it; "" for a node that is not here."""
        lease = self._leases.get(node_id)
        return lease.node.name if lease is not None else ""

    def last_seen(self, model_key: str) -> Node | None:
        """The node of this model that left last."""
        return self._departed.get(ModelKey(model_key))

    def _tell(self, change: Change) -> None:
        self.version += 1
        node = change.node
        log.info(
            "node %s node=%s name=%s model=%s shard=%s epoch=%d state=%s reason=%s",
            change.kind,
            node.node_id,
            node.name,
            node.model_key,
            node.shard,
            node.epoch,
            node.state,
            change.reason,
        )
        for listener in self._listeners:
            listener(change)


def _check_claim(claim: RegisterRequest) -> None:
    wallet = wallet_of(bytes.fromhex(claim.public_key))
    if claim.wallet != wallet:
        raise InvalidRequest(f"wallet is {claim.wallet}, but that public_key's is {wallet}.", param="wallet")
    if not claim.shard_start <= claim.shard_end < claim.n_layers:
        raise InvalidRequest(
            f"Layers {claim.shard_start}-{claim.shard_end} are no shard of a model of {claim.n_layers} layers.",
            param="shard_end",
        )


def _in_use(wallet: Wallet, urls: str) -> Conflict:
    return Conflict(
        f"Two processes have the wallet {wallet}, at {urls}. Neither gets calls until one is stopped for some seconds; "
        "another node needs another --name.",
        code="wallet_in_use",
    )


def _node_of(claim: RegisterRequest, epoch: int, now: float) -> Node:
    shard = Shard(claim.shard_start, claim.shard_end)
    wallet = Wallet(claim.wallet)
    return Node(
        node_id=make_node_id(wallet, shard),
        wallet=wallet,
        url=claim.url.rstrip("/"),
        model_key=ModelKey(claim.model_key),
        revision=Revision(claim.revision),
        n_layers=claim.n_layers,
        shard=shard,
        dtype=claim.dtype,
        hidden_size=claim.hidden_size,
        context_length=claim.context_length,
        epoch=epoch,
        state=claim.state,
        name=claim.name,
        benchmark_tokens_per_sec=claim.benchmark_tokens_per_sec,
        tail_layers=claim.tail_layers,
        kv_free_bytes=claim.kv_budget_bytes,
        kv_budget_bytes=claim.kv_budget_bytes,
        hardware=msgspec.convert(claim.hardware, HardwareProfile, from_attributes=True),
        joined_at=now,
        heard_at=now,
    )


def _keep_measures(before: HeartbeatRequest | None, beat: HeartbeatRequest) -> HeartbeatRequest:
    """A heartbeat says a measured speed once; it holds until the next one says another."""
    if before is None:
        return beat
    names = (
        "benchmark_tokens_per_sec",
        "benchmark_batch8_tokens_per_sec",
        "prefill_tokens_per_sec",
        "benchmark_spread",
        "tail_layers",
        "matrix_gflops",
        "memory_gb_s",
        "accelerators",
    )
    kept = {name: getattr(before, name) for name in names if getattr(beat, name) is None}
    return msgspec.structs.replace(beat, **kept)


def _work(node: Node) -> tuple[str, int, float, float]:
    """What a heartbeat changes that routing reads."""
    return node.state, node.queue_depth, node.benchmark_tokens_per_sec, node.tail_layers


def _place(node: Node) -> tuple[NodeId, ModelKey, Revision, int, str]:
    """What makes a route through a node another one."""
    return node.node_id, node.model_key, node.revision, node.n_layers, node.dtype
