"""A tracker that will never take this node as it was started: said in one line, instead of asked for ever."""

from __future__ import annotations

from meshnet.domain.errors import MeshnetError, StartError

JOIN_HELP = (
    "set MESHNET_JOIN_TOKEN to a key of scope join, made on the tracker's machine with: "
    "meshnet keys create nodes --scope join"
)


def refusal(error: MeshnetError) -> StartError | None:
    """What its owner must mend before a start can succeed; None for what may pass by itself."""
    match error.code:
        case "unauthorized":
            return StartError(
                f"The tracker takes no node without a join token that it knows: {JOIN_HELP}.", code=error.code
            )
        case "wrong_scope":
            return StartError(f"{error.message} To join, {JOIN_HELP}.", code=error.code)
        case "bad_address":
            return StartError(f"The tracker refuses this node's address: {error.message}", code=error.code)
        case _:
            return None
