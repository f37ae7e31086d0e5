"""Every deadline of a node in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. Lower ones find failures sooner and blame slow nodes for slowness; higher ones make clients wait."""

    connect_s: float = 2.0
    """TCP, upgrade and HELLO to another hop."""
    open_s: float = 5.0
    """OPEN around the ring: two refused dials on the way fit in, a third does not matter any more."""
    stall_s: float = 2.0
    """Silence of a session before its hops are probed; also the floor of ``stall_steps``."""
    stall_steps: float = 8.0
    """Or this many times its own slowest recent token, whichever is longer."""
    probe_s: float = 0.5
    """An answer to PROBE: it costs a hop nothing, so whoever is silent for this long is stopped or cut off."""
    idle_session_s: float = 60.0
    """A hop's session without frames or probes: the last net under everything else."""
    drain_s: float = 1.0
    """A stop waits this long for answers that are nearly complete."""
