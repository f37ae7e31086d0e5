"""Which addresses a node may advertise: whatever a tracker or a peer dials because somebody said so is checked first.

``ipaddress.is_global`` alone is not enough: on Python 3.11 it calls 192.0.0.8 and 64:ff9b::7f00:1 global.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.keys import Profile

Address = IPv4Address | IPv6Address

_NEVER = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "100.100.100.200/32",  # a cloud's metadata service
        "169.254.0.0/16",  # link-local, most metadata services
        "fd00:ec2::254/128",  # a metadata service
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local, retired
        "2001::/32",  # Teredo: carries an IPv4 address
        "2002::/16",  # 6to4: carries an IPv4 address
        "64:ff9b::/96",  # NAT64: carries an IPv4 address
        "64:ff9b:1::/48",
        "::ffff:0:0/96",  # IPv4-mapped
        "::/96",  # IPv4-compatible, unspecified and loopback too
    )
)


def check_address(text: str, profile: Profile, allowed: Iterable[str] = ()) -> Address:
    """The parsed address of a peer. Raises InvalidRequest(param="url") saying why it may not be dialled.

    local: loopback, and private networks. lan: private networks (or ``allowed``, CIDRs), and public ones.
    exposed: public ones, or ``allowed``. Link-local, metadata, mapped, multicast and reserved ones never.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise _refused(text, "it is no IP address") from None
    if getattr(address, "scope_id", None):
        raise _refused(text, "it names a network interface")
    if address.is_loopback:
        if profile == "local":
            return address
        raise _refused(text, "a loopback address is another machine's own")
    if address.is_multicast or address.is_unspecified or any(address in net for net in _NEVER if _same(address, net)):
        raise _refused(text, "addresses of this kind are never a node's")
    if any(address in net for net in map(ip_network, allowed) if _same(address, net)):
        return address
    if address.is_global:
        return address
    if address.is_private and not address.is_reserved and _is_site_network(address) and profile != "exposed":
        return address
    raise _refused(text, f"it is not public, and the profile is {profile}")


def _is_site_network(address: Address) -> bool:
    """RFC 1918 and RFC 4193: what is_private also counts (documentation, benchmarks) is nobody's network."""
    nets = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
    return any(address in net for net in map(ip_network, nets) if _same(address, net))


def _same(address: Address, network: object) -> bool:
    return isinstance(network, IPv6Network) == isinstance(address, IPv6Address)


def _refused(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"A node cannot be at {text}: {why}.", code="bad_address", param="url")
