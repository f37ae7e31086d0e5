"""A relay's figures for Prometheus."""

from __future__ import annotations

from daemons.relay.seats import Seats
from daemons.relay.splice import Desk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(seats: Seats, desk: Desk) -> bytes:
    """Text format. Codes of refusals are ours, never a stranger's text."""
    lines = [
        "# TYPE meshnet_relay_nodes gauge",
        f"meshnet_relay_nodes {len(seats)}",
        "# TYPE meshnet_relay_links gauge",
        f"meshnet_relay_links {len(desk.splices)}",
        "# TYPE meshnet_relay_waiting gauge",
        f"meshnet_relay_waiting {desk.n_waiting}",
        "# TYPE meshnet_relay_bytes_total counter",
        f"meshnet_relay_bytes_total {desk.bytes_carried}",
        "# TYPE meshnet_relay_refused_total counter",
        *(f'meshnet_relay_refused_total{{code="{code}"}} {count}' for code, count in sorted(desk.refused.items())),
    ]
    return ("\n".join(lines) + "\n").encode()
