"""Tiny daemons that speak just enough of the wire for the command line: real processes, real sockets, canned answers.

Run as ``python -m daemons.tracker`` and ``-m daemons.node`` from a folder that the fixtures put before the real ones.
FAKE_FAIL, FAKE_STUBBORN, FAKE_LOADING and FAKE_LOCKED name the daemons that die at start, ignore SIGTERM, never become
ready, or show their status to nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

N_LAYERS = 30
CONTEXT = 8192


class FakeMesh:
    """What a tracker would know."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.chats: list[dict[str, Any]] = []
        self.hold = threading.Event()
        """Set by a test to let a held answer go on."""

    def add(self, name: str, url: str, shard: str, model: str = "smollm2-135m") -> str:
        start, _, end = shard.partition("-")
        wallet = f"wallet{name}xxxxxxxxxxxx"[:20]
        node_id = f"{wallet}.{shard}"
        self.nodes = [node for node in self.nodes if node["name"] != name]
        self.nodes.append(
            {
                "node_id": node_id,
                "wallet": wallet,
                "name": name,
                "url": url,
                "model_key": model,
                "revision": "0123456789abcdef",
                "n_layers": N_LAYERS,
                "shard_start": int(start),
                "shard_end": int(end),
                "dtype": "float32",
                "context_length": CONTEXT,
                "epoch": 1,
                "state": "ready",
                "live": True,
                "suspect": False,
                "heartbeat_age_s": 1.0,
                "joined_age_s": 5.0,
                "benchmark_tokens_per_sec": 12.5,
            }
        )
        return node_id

    def depths(self) -> list[int]:
        return [sum(n["shard_start"] <= at <= n["shard_end"] for n in self.nodes) for at in range(N_LAYERS)]

    def model(self) -> dict[str, Any]:
        missing = self.depths().count(0)
        return {
            "id": "smollm2-135m",
            "created": 0,
            "n_layers": N_LAYERS,
            "context_length": CONTEXT,
            "nodes": len(self.nodes),
            "coverage_deficit": missing / N_LAYERS,
            "ready": missing == 0,
        }

    def coverage(self) -> dict[str, Any]:
        depths = self.depths()
        return {
            "model_key": "smollm2-135m",
            "n_layers": N_LAYERS,
            "depths": depths,
            "gaps": _ranges(depths, 0),
            "single": _ranges(depths, 1),
            "coverage_deficit": depths.count(0) / N_LAYERS,
            "layers": [],
            "loss": {},
        }


def _ranges(depths: list[int], wanted: int) -> list[str]:
    found: list[list[int]] = []
    for layer, depth in enumerate(depths):
        if depth == wanted and found and found[-1][1] == layer - 1:
            found[-1][1] = layer
        elif depth == wanted:
            found.append([layer, layer])
    return [f"{a}-{b}" for a, b in found]


class TrackerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def mesh(self) -> FakeMesh:
        return self.server.mesh  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        models = [self.mesh.model()] if self.mesh.nodes else []
        match path:
            case "/healthz":
                self._json({"status": "ok", "version": "fake", "uptime_s": 75.0})
            case "/readyz":
                self._json({"status": "ready", "version": "fake"})
            case "/v1/nodes":
                self._json({"nodes": self.mesh.nodes})
            case "/v1/models":
                self._json({"object": "list", "data": models})
            case "/v1/models/smollm2-135m" if models:
                self._json(models[0])
            case "/v1/coverage":
                self._json({"models": [self.mesh.coverage()] if models else []})
            case _:
                self._error(404, "not_found", f"There is nothing at {path}.")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/fake/register":
            self._json({"node_id": self.mesh.add(**body)})
            return
        self.mesh.chats.append(body)
        text = body["messages"][-1]["content"]
        if text == "too long":
            self._error(
                400, "context_length_exceeded", "The prompt has 9000 tokens, but this model's context holds 8192."
            )
        elif text == "no route":
            self._error(503, "no_route", "Layers 15-29 of smollm2-135m are held by no live node.")
        elif text == "pinned":
            n2 = self.mesh.nodes[1]["node_id"]
            self._error(502, "link_closed", f"The link broke (node {n2}, link_closed); the route is pinned.")
        elif text == "no key":
            self._error(401, "unauthorized", "This needs an API key: Authorization: Bearer mnk_…")
        else:
            self._stream(text)

    def _stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Meshnet-Call-Id", "call-1")
        self.send_header("X-Meshnet-Mode", "scout")
        self.send_header("Connection", "close")
        route = " -> ".join(f"{n['node_id']}[{n['shard_start']}-{n['shard_end']}]" for n in self.mesh.nodes[:2])
        self.send_header("X-Meshnet-Route", f"smollm2-135m | {route}")
        self.end_headers()
        self._chunk({"role": "assistant", "content": ""})
        pieces = {"escape": ["\x1b[2J", "hi\u202e", "\n"]}.get(text, ["Paris", " is", " it."])
        for number, piece in enumerate(pieces):
            if number == 1 and text == "cut":
                self._event({"error": {"message": "n2 died", "type": "server_error", "code": "node_failed"}})
                return
            if number == 1 and text == "vanish":
                self.close_connection = True
                return
            if number == 1 and text == "hold":
                self.mesh.hold.wait(10)
            self._chunk({"content": piece})
        extra = {}
        if text == "reroute":
            broken = {"code": "link_closed", "node": self.mesh.nodes[1]["node_id"], "message": "the link broke"}
            extra = {"meshnet": {"rerouted": [broken], "why": "it is proven"}}
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **extra})
        self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 9}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> None:
        self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str, message: str) -> None:
        self._json({"error": {"message": message, "type": "x", "code": code, "param": None}}, status)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class NodeHandler(TrackerHandler):
    def do_GET(self) -> None:
        status = self.server.status  # type: ignore[attr-defined]
        if self.path == "/healthz":
            self._json({"status": status["state"], "version": "fake"})
        elif status["name"] in os.environ.get("FAKE_LOCKED", "").split(","):
            self._error(401, "unauthorized", "This needs an API key: Authorization: Bearer mnk_…")
        else:
            self._json(status)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


def tracker_server(port: int = 0) -> tuple[Server, FakeMesh]:
    server = Server(("127.0.0.1", port), TrackerHandler)
    server.mesh = FakeMesh()  # type: ignore[attr-defined]
    return server, server.mesh  # type: ignore[attr-defined]


def main(kind: str) -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--name", "--host", "--model", "--shard", "--tracker", "--threads", "--dtype"):
        parser.add_argument(flag)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    name = options.name
    if name in os.environ.get("FAKE_FAIL", "").split(","):
        sys.exit(f"{name}: the disk is on fire")
    if name in os.environ.get("FAKE_STUBBORN", "").split(","):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"{name} begins with {' '.join(sys.argv[1:])}", flush=True)
    server = _tracker(options) if kind == "tracker" else _node(options)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    _write_run_file(kind, name, url)
    if kind == "node":
        _register(options, url)
        print(f"2026-01-01T00:00:00.000Z INFO daemons.node.announce registered node={name}", flush=True)
    server.serve_forever()


def _tracker(options: argparse.Namespace) -> Server:
    return tracker_server(options.port)[0]


def _node(options: argparse.Namespace) -> Server:
    server = Server(("127.0.0.1", options.port), NodeHandler)
    start, _, end = options.shard.partition("-")
    loading = options.name in os.environ.get("FAKE_LOADING", "").split(",")
    server.status = {  # type: ignore[attr-defined]
        "node_id": f"w.{options.shard}",
        "name": options.name,
        "state": "loading" if loading else "ready",
        "model_key": options.model,
        "revision": "0123456789abcdef",
        "shard_start": int(start),
        "shard_end": int(end),
        "dtype": "float32",
        "epoch": 1,
        "boot": "bootboot",
        "sessions": 0,
        "queue_depth": 0,
        "kv_budget_bytes": 0,
        "kv_reserved_bytes": 0,
        "links": 0,
        "forward_steps": 0,
        "loading_done_bytes": 40,
        "loading_total_bytes": 100,
        "registered": True,
    }
    return server


def _register(options: argparse.Namespace, url: str) -> None:
    body = {"name": options.name, "url": url, "shard": options.shard, "model": options.model}
    request = urllib.request.Request(f"{options.tracker}/fake/register", json.dumps(body).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=5).close()


def _write_run_file(kind: str, name: str, url: str) -> None:
    folder = Path(os.environ["MESHNET_HOME"]) / "run"
    folder.mkdir(parents=True, exist_ok=True)
    started = psutil.Process().create_time()
    record = {"kind": kind, "name": name, "pid": os.getpid(), "started": started, "url": url}
    draft = folder / f"{name}.tmp"
    draft.write_text(json.dumps(record))
    draft.replace(folder / f"{name}.json")
