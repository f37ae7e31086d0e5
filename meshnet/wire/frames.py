"""Binary messages of a link: control frames (kind byte + JSON) and tensor frames (``MNH1``).

A tensor frame is a fixed header, a table row per session, then raw little-endian rows:

    header  magic 4s | version u8 | dtype u8 | flags u16 | start_layer u16 | end_layer u16 | n_sessions u16 | pad u16
            | rows u32 | hidden u32 | table bytes u32 | payload bytes u32 | table crc32 u32 | payload crc32 u32
    row     session u64 | attempt u32 | position u32 | step u32 | n_rows u32 | flags u8 | n_hops u8
            | n_hops x (queued us u32, computing us u32)

Every field is checked against the caps below before anything is allocated; whether a session exists, who owns it and
which position comes next is checked by daemons/node/sessions.py. Sizes and caps live here and nowhere else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from meshnet.domain.engine import ITEMSIZE, Rows, SessionKey
from meshnet.domain.errors import FrameError
from meshnet.domain.routes import MAX_HOPS
from meshnet.domain.shards import MAX_LAYERS
from meshnet.wire.api import WIRE_VERSION
from meshnet.wire.messages import DECODERS, KIND_OF

MAGIC = b"MNH1"

MAX_PAYLOAD_BYTES = 64 * 1024
"""Rows in one message: at 10 Mbit/s it holds the line 50 ms, so decode rows of others wait no longer. One row may
always travel, however wide."""
MAX_HIDDEN = 1 << 17
"""The widest models have 16,384; eight times that bounds what a header can make us allocate."""
MAX_SESSIONS_PER_FRAME = 256
"""As many as a packed step holds."""
MAX_TABLE_BYTES = MAX_SESSIONS_PER_FRAME * (26 + 8 * MAX_HOPS)
MAX_CONTROL_BYTES = 8 * 1024 * 1024
"""An OPEN with a 1M-token prompt is about 7 MB of JSON."""
MAX_MESSAGE_BYTES = MAX_CONTROL_BYTES
"""What a WebSocket may deliver at once."""

_HEADER = struct.Struct("<4sBBHHHHHIIIIII")
_ROW = struct.Struct("<QIIIIBB")
_HOP = struct.Struct("<II")

_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_DTYPE_NAMES = {code: name for name, code in _DTYPES.items()}

_SAMPLE, _MORE = 1, 2


@dataclass(frozen=True, slots=True)
class SessionRows:
    """One session's part of a tensor frame.

    ``sample``: the last row ends the known tokens, so the tail answers with a token.
    ``more``: further rows of the same step follow in the next message; wait for them before computing.
    ``hop_us``: (queued, computing) microseconds of each hop so far.
    """

    key: SessionKey
    position: int
    step: int
    n_rows: int
    sample: bool = False
    more: bool = False
    hop_us: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Hidden:
    """A tensor frame: rows of several sessions that execute the same layers on the receiver."""

    start_layer: int
    end_layer: int
    sessions: tuple[SessionRows, ...]
    rows: Rows

    def split(self) -> Iterator[tuple[SessionRows, Rows]]:
        """Each session with its own rows, as views into the payload."""
        width = self.rows.shape[1] * ITEMSIZE[self.rows.dtype]
        data, at = memoryview(self.rows.data), 0
        for part in self.sessions:
            size = part.n_rows * width
            yield part, Rows(self.rows.dtype, (part.n_rows, self.rows.shape[1]), data[at : at + size])
            at += size


def encode_control(message: msgspec.Struct) -> bytes:
    """Kind byte and JSON. Raises FrameError when it would not fit a message."""
    body = bytes((KIND_OF[type(message)],)) + msgspec.json.encode(message)
    if len(body) > MAX_CONTROL_BYTES:
        raise FrameError(f"a {type(message).__name__} of {len(body)} bytes exceeds {MAX_CONTROL_BYTES}")
    return body


def encode_hidden(
    start_layer: int,
    end_layer: int,
    sessions: Sequence[SessionRows],
    payloads: Sequence[bytes | memoryview],
    rows: Rows,
) -> bytes:
    """One message. ``rows`` gives dtype and hidden size; ``payloads`` are the bytes, session by session."""
    table = b"".join(_encode_row(part) for part in sessions)
    payload = b"".join(payloads)
    n_rows = sum(part.n_rows for part in sessions)
    header = _HEADER.pack(
        MAGIC,
        WIRE_VERSION,
        _DTYPES[rows.dtype],
        0,
        start_layer,
        end_layer,
        len(sessions),
        0,
        n_rows,
        rows.shape[1],
        len(table),
        len(payload),
        zlib.crc32(table),
        zlib.crc32(payload),
    )
    return b"".join((header, table, payload))


def rows_per_message(hidden: int, dtype: str) -> int:
    """How many rows of this width fit one message."""
    return max(1, MAX_PAYLOAD_BYTES // (hidden * ITEMSIZE[dtype]))


def cut(start_layer: int, end_layer: int, parts: Sequence[tuple[SessionRows, Rows]]) -> list[bytes]:
    """Messages of at most MAX_PAYLOAD_BYTES for these sessions' rows, in order. A session cut in two gets ``more`` on
    every piece but its last."""
    messages: list[bytes] = []
    batch: list[tuple[SessionRows, memoryview]] = []
    room = limit = 0
    shape = parts[0][1]
    limit = room = rows_per_message(shape.shape[1], shape.dtype)

    def flush() -> None:
        if batch:
            heads, payloads = [p for p, _ in batch], [d for _, d in batch]
            messages.append(encode_hidden(start_layer, end_layer, heads, payloads, shape))
            batch.clear()

    for part, rows in parts:
        width = rows.shape[1] * ITEMSIZE[rows.dtype]
        data, done = memoryview(rows.data).cast("B"), 0
        while done < part.n_rows:
            if room == 0 or len(batch) == MAX_SESSIONS_PER_FRAME:
                flush()
                room = limit
            take = min(room, part.n_rows - done)
            last = done + take == part.n_rows
            piece = SessionRows(
                part.key,
                part.position + done,
                part.step,
                take,
                part.sample and last,
                part.more or not last,
                part.hop_us,
            )
            batch.append((piece, data[done * width : (done + take) * width]))
            done, room = done + take, room - take
    flush()
    return messages


def decode(message: bytes) -> Hidden | msgspec.Struct:
    """A tensor frame or a control struct. Raises FrameError for anything else; touches no session."""
    if not message:
        raise FrameError("an empty message")
    if message[:4] == MAGIC:
        return _decode_hidden(message)
    decoder = DECODERS.get(message[0])
    if decoder is None:
        raise FrameError(f"unknown frame kind {message[0]}")
    try:
        return decoder.decode(memoryview(message)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a control frame of kind {message[0]} is malformed: {error}") from None


def _encode_row(part: SessionRows) -> bytes:
    session, attempt = part.key
    flags = (_SAMPLE if part.sample else 0) | (_MORE if part.more else 0)
    row = _ROW.pack(session, attempt, part.position, part.step, part.n_rows, flags, len(part.hop_us))
    if not part.hop_us:
        return row
    most = 0xFFFFFFFF
    return row + b"".join(_HOP.pack(min(queued, most), min(computing, most)) for queued, computing in part.hop_us)


def _decode_hidden(message: bytes) -> Hidden:
    view = memoryview(message)
    if len(view) < _HEADER.size:
        raise FrameError(f"a tensor frame of {len(view)} bytes is shorter than its header")
    (
        _,
        version,
        dtype,
        _flags,
        start,
        end,
        n_sessions,
        _pad,
        n_rows,
        hidden,
        table_len,
        size,
        table_crc,
        crc,
    ) = _HEADER.unpack_from(view)
    if version != WIRE_VERSION:
        raise FrameError(f"wire version {version}, expected {WIRE_VERSION}")
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        raise FrameError(f"unknown dtype code {dtype}")
    if not (0 < hidden <= MAX_HIDDEN and 0 < n_sessions <= MAX_SESSIONS_PER_FRAME and start <= end < MAX_LAYERS):
        raise FrameError(f"impossible header: hidden {hidden}, {n_sessions} sessions, layers {start}-{end}")
    if size != n_rows * hidden * ITEMSIZE[name] or table_len > MAX_TABLE_BYTES:
        raise FrameError(f"payload of {size} bytes is not {n_rows} rows of {hidden} {name}")
    if len(view) != _HEADER.size + table_len + size:
        raise FrameError(f"a tensor frame of {len(view)} bytes announces {_HEADER.size + table_len + size}")
    table, payload = view[_HEADER.size : _HEADER.size + table_len], view[_HEADER.size + table_len :]
    if zlib.crc32(table) != table_crc or zlib.crc32(payload) != crc:
        raise FrameError("a tensor frame's checksum does not match")
    sessions = tuple(_decode_table(table, n_sessions))
    if sum(part.n_rows for part in sessions) != n_rows:
        raise FrameError("the sessions' rows do not add up to the frame's")
    return Hidden(start, end, sessions, Rows(name, (n_rows, hidden), payload))


def _decode_table(table: memoryview, n_sessions: int) -> Iterator[SessionRows]:
    at = 0
    for _ in range(n_sessions):
        if at + _ROW.size > len(table):
            raise FrameError("the session table is cut short")
        session, attempt, position, step, n_rows, flags, n_hops = _ROW.unpack_from(table, at)
        at += _ROW.size
        if n_hops > MAX_HOPS or n_rows == 0 or at + n_hops * _HOP.size > len(table):
            raise FrameError(f"an impossible table row: {n_rows} rows, {n_hops} hops")
        hop_us = tuple(_HOP.iter_unpack(table[at : at + n_hops * _HOP.size]))
        at += n_hops * _HOP.size
        yield SessionRows(
            (session, attempt), position, step, n_rows, bool(flags & _SAMPLE), bool(flags & _MORE), hop_us
        )
    if at != len(table):
        raise FrameError("bytes left over behind the session table")
