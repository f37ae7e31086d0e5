"""Exit codes of every command, as docs/cli.md lists them, and which error means which."""

from __future__ import annotations

from meshnet.domain import errors

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
"""No tracker answers at the address."""
NO_ROUTE = 4
"""The tracker answers, but no chain of live nodes covers the model."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells count."""


def exit_code_of(error: errors.MeshnetError) -> int:
    match error:
        case errors.Unreachable(code="connection_lost"):
            return FAILED
        case errors.Unreachable():
            return UNREACHABLE
        case errors.InvalidRequest(code=errors.NOT_UTF8):
            return USAGE
        case errors.NoRoute():
            return NO_ROUTE
        case errors.NodeFailed() | errors.Overloaded() if errors.NO_OTHER_ROUTE in error.message:
            return NO_ROUTE
        case _:
            return FAILED
