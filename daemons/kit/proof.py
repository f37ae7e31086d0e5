"""That the other end of a link is who its HELLO says: by its signature, by the key of its TLS, or on trust.

On trust only under the profile local, where every peer is on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from daemons.kit.identity import WalletKey
from meshnet.domain.errors import Forbidden
from meshnet.domain.ids import Wallet
from meshnet.domain.nonces import Nonces
from meshnet.wire.hello import check_answer, check_dial, sign_answer, sign_dial, wallet_in
from meshnet.wire.messages import Hello


class Prover:
    """One daemon's. ``trackers``: the wallets that may speak as one. ``now`` is monotonic, ``wall`` Unix seconds,
    ``draw`` gives 32 hex characters."""

    def __init__(
        self,
        key: WalletKey,
        trackers: Callable[[], Container[Wallet]],
        now: Callable[[], float],
        wall: Callable[[], float],
        draw: Callable[[], str],
        *,
        required: bool,
    ) -> None:
        self._key = key
        self._trackers = trackers
        self._now = now
        self._wall = wall
        self._draw = draw
        self._required = required
        self._nonces = Nonces()

    def dial(self, hello: Hello, target_id: str) -> Hello:
        """Our HELLO to whom we dial."""
        return sign_dial(self._key.private, hello, target_id, now=self._wall(), nonce=self._draw())

    def answer(self, hello: Hello, peer: Hello) -> Hello:
        """Our HELLO to who dialled us."""
        return sign_answer(self._key.private, hello, peer)

    def check_dialler(self, peer: Hello, own_id: str, tls: Wallet | None) -> None:
        """Raises Forbidden unless whoever dialled us is who it says. ``tls``: the wallet its certificate proved."""
        if tls is not None:
            self._check(peer, tls)
        elif self._is_to_prove(peer):
            wallet = check_dial(peer, own_id, now=self._wall())
            self._nonces.spend(wallet, peer.nonce, self._now())
            self._check(peer, wallet)

    def check_answer(self, peer: Hello, sent: Hello, tls: Wallet | None) -> None:
        """Raises Forbidden unless whom we dialled is who it says."""
        if tls is not None:
            self._check(peer, tls)
        elif self._is_to_prove(peer):
            self._check(peer, check_answer(peer, sent))

    def _is_to_prove(self, peer: Hello) -> bool:
        return self._required or bool(peer.proof)

    def _check(self, peer: Hello, proved: Wallet) -> None:
        if wallet_in(peer) != proved:
            raise Forbidden(f"{peer.peer_id} has the key of {proved}.", code="wrong_peer")
        if peer.role == "tracker" and proved not in self._trackers() and self._required:
            raise Forbidden(f"{peer.peer_id} ({proved}) is no tracker of ours.", code="wrong_peer")
