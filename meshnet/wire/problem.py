"""Errors on the wire: one JSON shape, ``{"error": {"message", "type", "code", "param"}}``, which is also OpenAI's.

Status codes live here and nowhere else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from meshnet.domain import errors

_STATUS: tuple[tuple[type[errors.MeshnetError], int], ...] = (
    # The first that matches wins: subclasses before their parents.
    (errors.InvalidRequest, 400),
    (errors.Forbidden, 403),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.Overloaded, 503),
    (errors.NoRoute, 503),
    (errors.NodeFailed, 502),
    (errors.DeadlineExceeded, 504),
    (errors.FrameError, 400),
)

_BY_CODE = {
    "unauthorized": 401,
    "unsigned": 401,
    "method_not_allowed": 405,
    "slow_body": 408,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "bad_range": 416,
}

_EVENT_STATUS = {"overloaded": 503, "shutting_down": 503, "cancelled": 503, "deadline_exceeded": 504}
"""Codes that do not name a node, among the server's."""

_CLASSES: dict[int, type[errors.MeshnetError]] = {
    400: errors.InvalidRequest,
    401: errors.Forbidden,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    429: errors.Overloaded,
    502: errors.NodeFailed,
    504: errors.DeadlineExceeded,
}


def status_of(error: errors.MeshnetError) -> int:
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def body_of(error: errors.MeshnetError) -> dict[str, Any]:
    """The JSON object of an error; add nothing to it that a stranger may not read."""
    return {
        "error": {
            "message": error.message,
            "type": _type_of(status_of(error)),
            "code": error.code,
            "param": error.param,
        }
    }


def encode(error: errors.MeshnetError) -> bytes:
    return msgspec.json.encode(body_of(error))


def error_from(status: int, body: bytes) -> errors.MeshnetError:
    """The error that a response of this status and body carries, as the client's side raises it."""
    fields = _error_fields(body)
    message = str(fields.get("message") or f"HTTP {status}")
    code = str(fields["code"]) if fields.get("code") else None
    param = str(fields["param"]) if fields.get("param") else None
    if code == errors.NoRoute.code:
        return errors.NoRoute(message, code=code, param=param)
    if code == errors.EpochChanged.code:
        return errors.EpochChanged(message, code=code, param=param)
    if status == 503 or status == 429:
        return errors.Overloaded(message, code=code)
    kind = _CLASSES.get(status, errors.MeshnetError)
    if kind is errors.NodeFailed:
        return errors.NodeFailed(message, code=code)
    return kind(message, code=code, param=param)


def error_in_event(body: bytes) -> errors.MeshnetError:
    """The same for an error that came inside a stream: its status went out long ago, type and code tell."""
    fields = _error_fields(body)
    status = 400 if fields.get("type") == "invalid_request_error" else 502
    return error_from(_EVENT_STATUS.get(str(fields.get("code")), status), body)


def _error_fields(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    fields = decoded.get("error") if isinstance(decoded, dict) else None
    return fields if isinstance(fields, dict) else {}


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status in (401, 403):
        return "permission_error"
    return "invalid_request_error" if status < 500 else "server_error"
