"""Requests signed as a wallet, for the process of the tracker that answers: what ``meshnet.client`` is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet.wire.signatures import TRACKER_HEADER, sign_request


class RequestSigner:
    """``wall`` gives Unix seconds, ``draw`` a nonce of 32 hex characters, another one each time. ``settle`` is asked
    when the time was found wrong: whether it is another now."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        wall: Callable[[], float],
        draw: Callable[[], str],
        settle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._key = key
        self._wall = wall
        self._draw = draw
        self._settle = settle
        self._tracker = "unknown"
        """``<tracker_id>/<boot>`` of the process that answered last."""

    def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers to add to this request. ``url`` is absolute, as dialled."""
        return sign_request(self._key, method, url, body, self._tracker, now=self._wall(), nonce=self._draw())

    def learn(self, headers: Mapping[str, str]) -> bool:
        """Take the tracker process from a refusal; whether it is another than we signed for, or the time was wrong and
        is another now."""
        tracker = headers.get(TRACKER_HEADER, "")
        if tracker == self._tracker:
            return self._settle()
        if not tracker:
            return False
        self._tracker = tracker
        return True
