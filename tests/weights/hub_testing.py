"""A hub on loopback: the two answers huggingface_hub asks for, and nothing else."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves ``folder`` as repository ``owner/tiny``. ``break_after``: bytes of a GET until the line breaks, once."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.break_after: int | None = None
        self.ranges: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(folder: Path) -> Iterator[HubServer]:
    server = HubServer(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="hub")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if path in ("/api/models/owner/tiny", f"/api/models/owner/tiny/revision/{COMMIT}"):
            return self._send(json.dumps(self._listing()).encode(), with_body, {"Content-Type": "application/json"})
        prefix = f"/owner/tiny/resolve/{COMMIT}/"
        file = self.server.folder / path.removeprefix(prefix)
        if path.startswith(prefix) and file.is_file():
            data = file.read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            return self._send(data, with_body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _listing(self) -> dict[str, object]:
        files = [{"rfilename": f.name, "size": f.stat().st_size} for f in sorted(self.server.folder.iterdir())]
        return {"id": "owner/tiny", "sha": COMMIT, "siblings": files}

    def _send(self, data: bytes, with_body: bool, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range", "") if with_body else ""
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        if start:
            self.server.ranges.append(wanted)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if with_body:
            self._write(data[start:])

    def _write(self, data: bytes) -> None:
        limit = self.server.break_after
        if limit is not None and len(data) > limit:
            self.server.break_after = None
            self.wfile.write(data[:limit])
            self.close_connection = True
        else:
            self.wfile.write(data)
