"""Every error meshnet raises on purpose, as one tree, each with who handles it.

MeshnetError                     base: message, code, param; shown as one JSON shape by wire/problem.py
├── InvalidRequest               the client's own fault                          -> client, 400
│   ├── ContextLengthExceeded    prompt + answer do not fit the model            -> client, 400
│   └── BadPin                   pinned route unknown, dead or gapped            -> client, 400
├── NotFound                     no such model, node, call or file               -> client, 404
├── Conflict                     somebody else holds it, or it changed           -> client, 409
│   └── EpochChanged             node's shard, revision or epoch is another now  -> planner re-plans
├── Forbidden                    not with this key, host, peer or ticket         -> client, 403
├── Overloaded                   no KV, no slot, draining                        -> planner re-plans, else client, 503
├── NoRoute                      some layers are held by no live node            -> client, 503
├── NodeFailed                   a node broke, stalled or lied; names it         -> planner re-plans, else client, 502
├── DeadlineExceeded             a named deadline passed                         -> planner or client, 504
├── Unreachable                  a daemon does not answer at its address      -> cli, exit 3; announce tries again
├── FrameError                   bytes on a link that are not a valid frame      -> kit/link closes that link
├── WeightsError                 a source or the store is bad; names the file    -> cli, exit 1
└── StartError                   a daemon or command cannot start                -> cli, exit 1
"""

from __future__ import annotations


class MeshnetError(Exception):
    """Base. ``message`` says what happened and what to do; ``code`` is stable; ``param`` names the field at fault."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param


class InvalidRequest(MeshnetError):
    code = "invalid_request"


NOT_UTF8 = "not_utf8"
"""Code of an InvalidRequest that never left the client: its text cannot be sent."""


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens, but this model's context holds {context_length}. "
            "Shorten the conversation.",
            param="messages",
        )
        self.prompt_tokens, self.context_length = prompt_tokens, context_length


class BadPin(InvalidRequest):
    code = "bad_route"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="route")


class NotFound(MeshnetError):
    code = "not_found"


class Conflict(MeshnetError):
    code = "conflict"


class EpochChanged(Conflict):
    code = "epoch_changed"


class Forbidden(MeshnetError):
    code = "forbidden"


class Overloaded(MeshnetError):
    """``retry_after_s`` is what the client is told to wait."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class NoRoute(MeshnetError):
    code = "no_route"


NO_OTHER_ROUTE = "no other route is left"
"""Stands in the message of a node's failure that also left a gap: its code is that of what broke."""


class NodeFailed(MeshnetError):
    """``node_id`` is the culprit where it is known; ``cause`` is one of the codes of wire/messages.py."""

    code = "node_failed"

    def __init__(self, message: str, *, node_id: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.node_id = node_id


class DeadlineExceeded(MeshnetError):
    code = "deadline_exceeded"


class Unreachable(MeshnetError):
    """code "connection_lost" once something of an answer had come."""

    code = "unreachable"


class FrameError(MeshnetError):
    code = "bad_frame"


class WeightsError(MeshnetError):
    code = "weights"


class StartError(MeshnetError):
    code = "cannot_start"
