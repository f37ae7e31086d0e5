"""Settings of a node: defaults < [node] of the TOML file < MESHNET_* < flags, checked before anything starts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from meshnet.domain.errors import InvalidRequest, StartError
from meshnet.domain.ids import is_model_key
from meshnet.domain.shards import Shard, parse_shard

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    model: str = ""
    """Short name of a model in the local store."""
    shard: str = ""
    """Layers to hold, inclusive, ``0-14``. More layers: more memory, fewer hops."""
    tracker: str = "http://127.0.0.1:7070"
    name: str = "node"
    """Names its wallet, run file and log: two nodes of one home need two names."""
    host: str = "127.0.0.1"
    """Address to listen on. Only loopback, until nodes prove who they are."""
    port: int | None = None
    """None: 7071 in the default home, a free one in any other; 0: a free one."""
    advertise_url: str = ""
    """What others dial, when it is not what this node listens on."""
    threads: int | None = None
    """Of torch. None: torch's own choice, all cores; nodes on one machine should share them."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Must be the same along a route. 16 bits halve memory and, on most CPUs, also speed."""
    kv_budget: str = "1GiB"
    """Memory that sessions may reserve: a larger one admits more or longer chats."""
    delay_per_layer_ms: float = 0.0
    """For development: sleeps this long per layer in each step, to play a slower machine."""
    memory: str = ""
    """For a shard chosen by the tracker; not available yet."""
    rebalance: bool = False
    """Move to other layers on the tracker's advice; not available yet."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    def checked_shard(self) -> Shard:
        """Raises StartError for any setting that cannot be."""
        if not is_model_key(self.model):
            raise StartError(f"--model is {self.model!r}; it must name a model of `meshnet models list`.")
        if self.memory or self.rebalance or not self.shard:
            raise StartError("Give the layers to hold: --shard 0-14. (--memory and --rebalance are not available yet.)")
        if _NAME.fullmatch(self.name) is None:
            raise StartError(f"--name is {self.name!r}; use letters, digits, dot, dash and underscore.")
        if self.delay_per_layer_ms < 0 or (self.threads is not None and self.threads < 1):
            raise StartError("--delay-per-layer-ms must not be negative, and --threads at least 1.")
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise StartError(f"--port is {self.port}; ports go from 0 (a free one) to 65535.")
        if not is_loopback(self.host):
            raise StartError(f"--host {self.host} is refused: only loopback is served until the mesh has keys.")
        self.kv_budget_bytes()
        try:
            return parse_shard(self.shard)
        except InvalidRequest as error:
            raise StartError(error.message) from None

    def kv_budget_bytes(self) -> int:
        """Raises StartError."""
        match = _SIZE.fullmatch(self.kv_budget.strip())
        if match is None:
            raise StartError(f"--kv-budget is {self.kv_budget!r}; write it as 512MiB or 2GB.")
        unit = match[2].lower().rstrip("b")
        factor = 1024 if unit.endswith("i") else 1000
        return int(float(match[1]) * factor ** _UNITS[unit.rstrip("i")])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
