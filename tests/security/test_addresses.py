from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.dial import CheckedResolver, MeshConnector
from daemons.kit.identity import make_wallet_key
from meshnet.domain.addresses import check_address
from meshnet.domain.errors import InvalidRequest

# address, and the profiles under which a node may be there: l(ocal), a (lan), e(xposed).
TABLE = {
    "127.0.0.1": "l",
    "127.8.8.8": "l",
    "::1": "l",
    "10.0.0.1": "la",
    "172.16.9.9": "la",
    "192.168.1.4": "la",
    "fd12:3456::1": "la",
    "8.8.8.8": "lae",
    "2606:4700::1111": "lae",
    "0.0.0.0": "",
    "::": "",
    "::127.0.0.1": "",
    "255.255.255.255": "",
    "169.254.169.254": "",
    "fd00:ec2::254": "",
    "100.100.100.200": "",
    "100.64.0.1": "",
    "fe80::1": "",
    "fe80::1%eth0": "",
    "::ffff:127.0.0.1": "",
    "::ffff:8.8.8.8": "",
    "64:ff9b::7f00:1": "",
    "2002:7f00:1::": "",
    "2001:0:7f00:1::": "",
    "192.0.0.8": "",
    "192.88.99.1": "",
    "198.18.0.1": "",
    "203.0.113.5": "",
    "2001:db8::1": "",
    "224.0.0.1": "",
    "ff02::1": "",
    "240.0.0.1": "",
    "127.1": "",
    "0x7f000001": "",
    "2130706433": "",
    "localhost": "",
}


@pytest.mark.parametrize("address", TABLE)
@pytest.mark.parametrize("profile", ["local", "lan", "exposed"])
def test_where_a_node_may_be(address: str, profile) -> None:
    letter = {"local": "l", "lan": "a", "exposed": "e"}[profile]
    if letter in TABLE[address]:
        check_address(address, profile)
        return
    with pytest.raises(InvalidRequest) as refused:
        check_address(address, profile)
    assert refused.value.param == "url"


def test_an_operators_networks_are_added_but_never_the_metadata_service() -> None:
    check_address("10.1.2.3", "exposed", ["10.1.0.0/16"])
    check_address("100.64.0.1", "exposed", ["100.64.0.0/10"])
    for address, network in (("10.2.0.1", "10.1.0.0/16"), ("169.254.169.254", "0.0.0.0/0"), ("127.0.0.1", "0.0.0.0/0")):
        with pytest.raises(InvalidRequest):
            check_address(address, "exposed", [network])


class Names(AbstractResolver):
    """Answers in turn, as a hostile name server does."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def resolve(self, host, port=0, family=socket.AF_INET) -> list[ResolveResult]:
        address = self.answers.pop(0)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None:
        pass


async def test_a_name_is_checked_each_time_it_is_resolved() -> None:
    names = CheckedResolver(lambda address: check_address(address, "exposed"), Names("8.8.8.8", "127.0.0.1"))
    assert (await names.resolve("rebind.example", 80))[0]["host"] == "8.8.8.8"
    with pytest.raises(OSError, match=r"cannot be at 127\.0\.0\.1"):
        await names.resolve("rebind.example", 80)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://[::1]:1/", "http://169.254.169.254/", "http://name.example/"]
)
async def test_the_connector_dials_nothing_that_is_not_allowed(url: str, tmp_path) -> None:
    key = make_wallet_key(Ed25519PrivateKey.from_private_bytes(b"k" * 32), tmp_path / "k.tls")
    connector = MeshConnector(
        key, lambda _: None, lambda address: check_address(address, "exposed"), Names("127.0.0.1", "127.0.0.1")
    )
    async with aiohttp.ClientSession(connector=connector) as http:
        with pytest.raises((aiohttp.ClientConnectorError, OSError), match="cannot be at"):
            await http.get(url)
