"""Determines a client's address, even behind trusted proxies."""

import ipaddress
import re
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
HOPS_MAX = 8  # maximum number of trusted proxies in a chain; earlier entries in X-Forwarded-For are ignored
_WITH_PORT = re.compile(r"\[([^\]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+").fullmatch


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def client_address(peer: str, forwarded_for: str, trusted: tuple[Network, ...]) -> str:
    """Returns the peer's address or, if the peer is a trusted proxy, the address of the client behind it.

    `forwarded_for` is the value of X-Forwarded-For. A peer on a Unix socket has no address, but it is trusted, because
    only local processes can connect to the socket.
    """
    if peer and (not trusted or not is_in(peer, trusted)):
        return peer
    for hop in reversed(forwarded_for.rsplit(",", HOPS_MAX)):
        address = _without_port(hop.strip())
        if _parsed(address) is None:
            return peer  # not an address (for example, "unknown"), so use the address of the proxy that sent it
        if not is_in(address, trusted):
            return address
        peer = address
    return peer


def _without_port(hop: str) -> str:
    """Removes the port that some proxies append, as in 1.2.3.4:5678 and [::1]:5678."""
    match = _WITH_PORT(hop)
    return (match[1] or match[2]) if match else hop


def is_in(address: str, networks: tuple[Network, ...]) -> bool:
    parsed = _parsed(address)
    plain = getattr(parsed, "ipv4_mapped", None) or parsed  # a dual-stack socket maps IPv4 addresses to IPv6
    return parsed is not None and any(parsed in network or plain in network for network in networks)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
