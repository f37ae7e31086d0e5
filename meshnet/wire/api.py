"""Every path and header, and the caps on bodies. Nobody else spells one out."""

from __future__ import annotations

WIRE_VERSION = 1
"""Rises with any change of frames or control structs; HELLO refuses another."""

# Tracker
NODES = "/v1/nodes"
NODE = "/v1/nodes/{node_id}"
HEARTBEAT = "/v1/nodes/{node_id}/heartbeat"
ASSIGNMENTS = "/v1/assignments"
MODELS = "/v1/models"
MODEL = "/v1/models/{model_key}"
MODEL_FILE = "/v1/models/{model_key}/files/{name}"
COVERAGE = "/v1/coverage"
ROUTING = "/v1/routing"
EXPLAIN = "/v1/routing/explain"
STATS = "/v1/stats"
GOSSIP = "/v1/gossip"
USAGE = "/v1/usage"
CALLS = "/v1/calls"
CALL = "/v1/calls/{call_id}"
EVENTS = "/v1/events"
CHAT = "/v1/chat/completions"
HEALTH = "/healthz"
HEALTH_ALIAS = "/health"
READY = "/readyz"
METRICS = "/metrics"

# Node
LINK = "/v1/link"
FORWARD = "/v1/forward"
STATUS = "/v1/status"

# Headers
START_LAYER = "X-Meshnet-Start-Layer"
END_LAYER = "X-Meshnet-End-Layer"
DTYPE = "X-Meshnet-Dtype"
SHAPE = "X-Meshnet-Shape"
"""``rows,hidden`` of the raw rows in a /v1/forward body or answer."""
CALL_ID = "X-Meshnet-Call-Id"
ROUTE = "X-Meshnet-Route"
"""The route's signature."""
MODE = "X-Meshnet-Mode"
ATTEMPT = "X-Meshnet-Attempt"
TICKET = "X-Meshnet-Ticket"
"""A tracker's link ticket, shown to a node instead of a key: for audits and for fetching its files."""

MAX_CONTROL_BODY_BYTES = 256 * 1024
"""Register, heartbeat, assignments: a hardware profile is under 4 KiB; 256 KiB leaves room for gossip to come."""
MAX_CHAT_BODY_BYTES = 4 * 1024 * 1024
"""A context of 128k tokens is about 0.5 MB of text; JSON escapes can double it. Raising it costs memory per request."""
MAX_GOSSIP_BODY_BYTES = 4 * 1024 * 1024
"""1,000 models in all windows are about 2 MB; slices beyond this wait for the next round."""
MAX_FORWARD_BODY_BYTES = 32 * 1024 * 1024
"""/v1/forward is for parity checks and audits: 4,096 rows of 2,048 float32."""

DEFAULT_TRACKER_PORT = 7070
DEFAULT_NODE_PORT = 7071
DEFAULT_RELAY_PORT = 7090
"""Fixed defaults only in the default home, so that the addresses in the README work; elsewhere ports are free ones."""
