"""Every JSON struct of our own API and of the links' control frames.

HTTP structs refuse unknown fields and NaN (msgspec does), and bound every number and string. Control frames on a link
are one kind byte and one of the structs of ``CONTROL`` as JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from meshnet.domain.chat import GenerationRequest, Sampling
from meshnet.domain.nodes import NodeState

# Bounds with one reason each.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
"""Sessions, queue depths, rows: a machine has thousands, not millions."""
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
"""A petabyte: beyond any machine, below where JavaScript readers lose integers."""
Layer = Annotated[int, Meta(ge=0, le=4095)]
"""domain.shards.MAX_LAYERS - 1."""
TokenId = Annotated[int, Meta(ge=0, le=1 << 24)]
"""The largest vocabularies have 2**18 tokens."""
Tps = Annotated[float, Meta(ge=0, le=1e7)]
"""Tokens/s; ten million is beyond any machine and keeps products finite."""
TailLayers = Annotated[float, Meta(ge=0, le=1000)]
"""What the output head costs a token, in the time of its node's layers; of the node with the last layer."""
_PAINTS_NOTHING = r"^[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*\Z"
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=_PAINTS_NOTHING)]
"""A name people see: no control or direction characters, 128 of them at most."""
Reason = Annotated[str, Meta(max_length=512, pattern=_PAINTS_NOTHING)]
"""Why not, in the words of another daemon, for people to read: characters as in names, and no last newline either."""
Url = Annotated[str, Meta(min_length=8, max_length=512, pattern=r"^(http|https|relay|tls)://[!-~]+\Z")]
ModelKeyText = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,95}\Z")]
RevisionText = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}\Z")]
WalletText = Annotated[str, Meta(pattern=r"^[a-z0-9]{8,64}\Z")]
NodeIdText = Annotated[str, Meta(pattern=r"^[a-z0-9]{1,64}\.\d{1,4}-\d{1,4}\Z")]
PublicKeyText = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
MAX_TICKET_CHARS = 12 * 1024
"""64 hops of about 100 bytes, base64: a longer one is no ticket, and is not decoded."""
TicketText = Annotated[str, Meta(max_length=MAX_TICKET_CHARS)]
DtypeText = Literal["float32", "bfloat16", "float16"]
U64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Session ids: 63 bits, since msgspec bounds by signed 64-bit integers."""


class AcceleratorMessage(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    kind: Name
    memory_bytes: Bytes = 0


class HardwareMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """domain.nodes.HardwareProfile on the wire."""

    cpu_model: Name = "unknown"
    cores_physical: Count = 0
    cores_logical: Count = 0
    ram_total_bytes: Bytes = 0
    ram_available_bytes: Bytes = 0
    swap_total_bytes: Bytes = 0
    disk_free_bytes: Bytes = 0
    os: Name = "unknown"
    python: Annotated[str, Meta(max_length=64)] = ""
    accelerators: Annotated[tuple[AcceleratorMessage, ...], Meta(max_length=64)] = ()


class RegisterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node asks for a lease: ``POST /v1/nodes``."""

    wallet: WalletText
    public_key: PublicKeyText
    """Ed25519, raw, hex: the wallet is its fingerprint."""
    name: Name
    url: Url
    model_key: ModelKeyText
    revision: RevisionText
    n_layers: Annotated[int, Meta(ge=1, le=4096)]
    shard_start: Layer
    shard_end: Layer
    dtype: DtypeText = "float32"
    hidden_size: Annotated[int, Meta(ge=1, le=1 << 17)]
    context_length: Annotated[int, Meta(ge=1, le=1 << 24)]
    state: NodeState = "ready"
    boot: Annotated[str, Meta(min_length=8, max_length=64)]
    """Drawn at process start: another boot is another process, even at the same address."""
    benchmark_tokens_per_sec: Tps = 1.0
    benchmark_batch8_tokens_per_sec: Tps = 0.0
    prefill_tokens_per_sec: Tps = 0.0
    benchmark_spread: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    tail_layers: TailLayers = 0.0
    kv_budget_bytes: Bytes = 0
    memory_budget_bytes: Bytes = 0
    weights_bytes: Bytes = 0
    rebalance: bool = False
    """It moves to other layers on the tracker's advice."""
    direct_url: Annotated[str, Meta(max_length=512, pattern=r"^((http|https|tls)://[!-~]+)?\Z")] = ""
    """Where a relayed node listens: tried now and then, for a shorter way."""
    payee: Annotated[str, Meta(pattern=r"^([a-z0-9]{8,64})?\Z")] = ""
    """Wallet that this node's work is to be paid to; its own when empty. Kept, not used yet."""
    hardware: HardwareMessage = HardwareMessage()


class RegisterResponse(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    node_id: NodeIdText
    epoch: Count
    """Of this wallet's leases on this tracker; frames carry it."""
    heartbeat_interval_s: float
    tracker_id: str
    tracker_boot: str
    tracker_wallet: str = ""
    """Of the tracker's own key: whose tickets to take."""
    relays: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    """Control addresses of relays that take this tracker's tickets, for nodes that nobody can dial."""


class HeartbeatRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    epoch: Count
    state: NodeState = "ready"
    queue_depth: Count = 0
    """Sessions with rows waiting or being computed."""
    in_flight: Count = 0
    """Open sessions."""
    kv_free_bytes: Bytes = 0
    ram_available_bytes: Bytes = 0
    rss_bytes: Bytes = 0
    loading_done_bytes: Bytes = 0
    loading_total_bytes: Bytes = 0
    observed_tokens_per_sec: Tps = 0.0
    """Decode rate over the last minute, 0 when idle."""
    benchmark_tokens_per_sec: Tps | None = None
    benchmark_batch8_tokens_per_sec: Tps | None = None
    prefill_tokens_per_sec: Tps | None = None
    benchmark_spread: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    tail_layers: TailLayers | None = None
    matrix_gflops: Annotated[float, Meta(ge=0, le=1e7)] | None = None
    memory_gb_s: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    accelerators: Annotated[tuple[AcceleratorMessage, ...], Meta(max_length=64)] | None = None
    """Known once the engine is loaded, as are the rates."""


class MoveAdvice(Struct, frozen=True, forbid_unknown_fields=True):
    """The mesh would gain if this node held these layers instead."""

    shard_start: Layer
    shard_end: Layer
    why: str


class HeartbeatResponse(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    epoch: Count
    advice: MoveAdvice | None = None
    unreachable: bool = False
    """Nobody can dial this node where it says it is: it needs a relay."""
    has_direct_way: bool = False
    """A relayed node's ``direct_url`` works."""


class NodeMessage(Struct, frozen=True, kw_only=True):
    """One node in ``GET /v1/nodes``: its lease, hardware, speed and health."""

    node_id: str
    wallet: str
    name: str
    url: str
    model_key: str
    revision: str
    n_layers: int
    shard_start: int
    shard_end: int
    dtype: str
    context_length: int
    epoch: int
    state: NodeState
    live: bool
    suspect: bool
    heartbeat_age_s: float
    joined_age_s: float
    relayed: bool = False
    """Reached through a relay."""
    unreachable: str = ""
    """Why nobody can dial it, so that calls leave it out; "" where they do not."""
    benchmark_tokens_per_sec: float
    benchmark_batch8_tokens_per_sec: float = 0.0
    prefill_tokens_per_sec: float = 0.0
    benchmark_spread: float = 0.0
    tail_layers: float = 0.0
    observed_tokens_per_sec: float = 0.0
    matrix_gflops: float = 0.0
    """Float32 matrix products, and memory copies in GB/s, at its last benchmark; 0: not measured."""
    memory_gb_s: float = 0.0
    observed_ratio: float | None = None
    """Measured in its calls / claimed in its benchmark, decayed; None before it served. Far below 1: a false claim."""
    reputation: float = 1.0
    queue_depth: int = 0
    in_flight: int = 0
    tracker_in_flight: int = 0
    kv_budget_bytes: int = 0
    kv_free_bytes: int = 0
    memory_budget_bytes: int = 0
    weights_bytes: int = 0
    rss_bytes: int = 0
    loading_done_bytes: int = 0
    loading_total_bytes: int = 0
    health: str = "ok"
    ejected_for_s: float = 0.0
    failures: int = 0
    hardware: HardwareMessage = HardwareMessage()


class NodesResponse(Struct, frozen=True):
    nodes: tuple[NodeMessage, ...]


class ModelMessage(Struct, frozen=True, kw_only=True):
    """One entry of ``GET /v1/models``: OpenAI's fields, then ours."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "meshnet"
    n_layers: int = 0
    context_length: int = 0
    max_model_len: int = 0
    """The same as context_length, by the name several clients read."""
    revisions: tuple[str, ...] = ()
    nodes: int = 0
    coverage_deficit: float = 1.0
    ready: bool = False


class ModelsResponse(Struct, frozen=True):
    data: tuple[ModelMessage, ...]
    object: str = "list"


class CoverageLayer(Struct, frozen=True):
    layer: int
    nodes: tuple[str, ...]


class CoverageModel(Struct, frozen=True, kw_only=True):
    """``GET /v1/coverage``: one model, layer by layer."""

    model_key: str
    n_layers: int
    depths: tuple[int, ...]
    gaps: tuple[str, ...]
    """Uncovered ranges, ``"7-9"``."""
    single: tuple[str, ...]
    """Ranges held by one node only."""
    coverage_deficit: float
    layers: tuple[CoverageLayer, ...]
    loss: dict[str, str] = {}
    """node_id -> the ranges that its loss would uncover, where there are any."""
    on_the_way: tuple[str, ...] = ()
    """Parts of the gaps that a node is loading or has reserved."""


class CoverageResponse(Struct, frozen=True):
    models: tuple[CoverageModel, ...]


class NodeStatus(Struct, frozen=True, kw_only=True):
    """``GET /v1/status`` of a node."""

    node_id: str
    name: str
    state: NodeState
    model_key: str
    revision: str
    shard_start: int
    shard_end: int
    dtype: str
    epoch: int
    boot: str
    sessions: int
    queue_depth: int
    kv_budget_bytes: int
    kv_reserved_bytes: int
    links: int
    forward_steps: int
    """Packed steps run since start: a counter that stays put when nothing is computed."""
    rows_computed: int = 0
    rss_bytes: int = 0
    loading_done_bytes: int = 0
    loading_total_bytes: int = 0
    uptime_s: float = 0.0
    registered: bool = False
    trackers: tuple[str, ...] = ()


class Health(Struct, frozen=True):
    status: str
    version: str = ""
    wallet: str = ""
    """Of a tracker's own key: a relay is told whose tickets to take. Of a node's: whom a dial-back found."""
    uptime_s: float = 0.0
    """Seconds since a tracker began; 0 where it is not said."""


# ---- control frames of a link -------------------------------------------------------------------------------------


class HopMessage(Struct, frozen=True):
    node_id: NodeIdText
    url: Url
    start_layer: Layer
    end_layer: Layer
    epoch: Count = 0


Hops = Annotated[tuple[HopMessage, ...], Meta(min_length=1, max_length=64)]
TokenIds = Annotated[tuple[TokenId, ...], Meta(max_length=1 << 20)]
Micros = Annotated[int, Meta(ge=0, le=1 << 40)]
"""Microseconds of one step: twelve days are no step, but a sum of them is a number all the same."""


class Hello(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """First message of both ends. ``peer_id`` is a node_id, or ``tracker.<id>``. ``wire/hello.py`` signs and checks the
    last four fields."""

    peer_id: Annotated[str, Meta(min_length=1, max_length=128)]
    role: Literal["node", "tracker"]
    boot: Annotated[str, Meta(min_length=8, max_length=64)]
    wire_version: Count
    revision: str = ""
    epoch: Count = 0
    dtype: str = ""
    public_key: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    nonce: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    made_at: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    proof: Annotated[str, Meta(pattern=r"^([0-9a-f]{128})?\Z")] = ""


class Generate(Struct, frozen=True, kw_only=True):
    """Tracker to head: answer this call, or go on with it (``prompt_ids`` and ``produced_ids`` given)."""

    session: U64
    attempt: Count
    call_id: str
    model_key: ModelKeyText
    revision: RevisionText
    dtype: DtypeText
    hops: Hops
    request: GenerationRequest
    deadline_s: Annotated[float, Meta(gt=0, le=86_400)]
    """Seconds left for the whole attempt: never a wall time."""
    stall_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Silence between tokens after which the head probes its hops; 0: the head's own."""
    prompt_ids: TokenIds | None = None
    produced_ids: TokenIds = ()
    chars_sent: Count = 0
    ticket: TicketText = ""
    """The tracker's leave for this attempt, for every hop to check."""


class Open(Struct, frozen=True, kw_only=True):
    """Around the ring, head to tail: reserve KV for this session. ``index`` is the receiver's place in ``hops``."""

    session: U64
    attempt: Count
    call_id: str
    model_key: ModelKeyText
    revision: RevisionText
    dtype: DtypeText
    hops: Hops
    index: Count
    reserve_tokens: Annotated[int, Meta(ge=1, le=1 << 24)]
    sampling: Sampling
    prompt_ids: TokenIds = ()
    produced_ids: TokenIds = ()
    ticket: TicketText = ""


class Opened(Struct, frozen=True):
    """Tail to head: KV is reserved on every hop."""

    session: U64
    attempt: Count


class Close(Struct, frozen=True):
    """Head to every hop directly: the answer is complete."""

    session: U64
    attempt: Count


class Cancel(Struct, frozen=True):
    """Tracker to head, then head to every hop directly: stop now and free everything."""

    session: U64
    attempt: Count
    reason: Annotated[str, Meta(max_length=256)] = ""


class Probe(Struct, frozen=True):
    """Head to every hop on a stall: where is this session?"""

    session: U64
    attempt: Count
    step: Count


class Probed(Struct, frozen=True, kw_only=True):
    """A hop's answer, within 500 ms: positions it last received and sent, and whether it queues or computes."""

    session: U64
    attempt: Count
    known: bool
    received: Count = 0
    sent: Count = 0
    queued: bool = False
    computing: bool = False


class Failed(Struct, frozen=True, kw_only=True):
    """A session ended badly: hop to head, head to tracker. ``culprit`` is the node to blame, where it is known."""

    session: U64
    attempt: Count
    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=4096)]
    culprit: NodeIdText | None = None
    param: Annotated[str, Meta(max_length=256)] | None = None


class Progress(Struct, frozen=True):
    """Tail to head: rows before ``position`` went all the way round. The head sends as many prefill chunks more."""

    session: U64
    attempt: Count
    position: Count


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled token on its way from tail to head."""

    session: U64
    attempt: Count
    position: Count
    """Of the token itself: the prompt's length for the first one."""
    token_id: TokenId
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    hop_us: tuple[tuple[int, int], ...] = ()
    """Per hop of the route: µs queued and µs computing for this token."""


class Tokens(Struct, frozen=True):
    """Tail to head: the tokens of one packed step that belong to this head."""

    items: tuple[Token, ...]


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] = ()
    top: tuple[tuple[str, float], ...] = ()


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Head to tracker: text that became certain and the tokens behind it."""

    session: U64
    attempt: Count
    text: Annotated[str, Meta(max_length=1 << 20)]
    token_ids: TokenIds = ()
    logprobs: Annotated[tuple[TokenLogprob, ...], Meta(max_length=1024)] = ()
    prompt_token_ids: TokenIds | None = None
    """On the first one of a session only."""
    hop_us: Annotated[tuple[tuple[Micros, Micros], ...], Meta(max_length=64)] = ()


class Finished(Struct, frozen=True, kw_only=True):
    """Head to tracker: the answer is complete; the last text was in a Delta before."""

    session: U64
    attempt: Count
    finish_reason: Literal["stop", "length"]
    prompt_tokens: Count
    completion_tokens: Count


class Dial(Struct, frozen=True):
    """Tracker to node: does this other node answer you at its address?"""

    node_id: NodeIdText
    url: Url


class Dialled(Struct, frozen=True):
    """Node to tracker: whether it does. ``why`` not, in words."""

    node_id: NodeIdText
    url: Url
    works: bool
    why: Reason = ""


Control = (
    Hello
    | Generate
    | Open
    | Opened
    | Close
    | Cancel
    | Probe
    | Probed
    | Failed
    | Tokens
    | Delta
    | Finished
    | Progress
    | Dial
    | Dialled
)

KINDS: dict[int, type[Struct]] = {
    # Append only: a number once given keeps its meaning. 77 ("M") is the first byte of a tensor frame.
    1: Hello,
    2: Generate,
    3: Open,
    4: Opened,
    5: Close,
    6: Cancel,
    7: Probe,
    8: Probed,
    9: Failed,
    10: Tokens,
    11: Delta,
    12: Finished,
    13: Progress,
    14: Dial,
    15: Dialled,
}
KIND_OF: dict[type[Struct], int] = {kind: number for number, kind in KINDS.items()}
DECODERS: dict[int, msgspec.json.Decoder[Any]] = {n: msgspec.json.Decoder(kind) for n, kind in KINDS.items()}
