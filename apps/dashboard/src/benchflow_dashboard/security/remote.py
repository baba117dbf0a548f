"""The address of the client, also behind a proxy that the settings trust."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from benchflow_contracts import UsageError
from litestar.connection import ASGIConnection

Networks = tuple[IPv4Network | IPv6Network, ...]


def read_networks(texts: Iterable[str]) -> Networks:
    """Return addresses and networks, such as `10.0.0.0/8`.

    Raises:
        UsageError: A text is neither.
    """
    networks: list[IPv4Network | IPv6Network] = []
    for text in texts:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise UsageError(f"{text!r} is not an address or a network: {error}") from error
    return tuple(networks)


def remote_address(connection: ASGIConnection[Any, Any, Any, Any], trusted: Networks) -> str:
    """Return the address of the client.

    `X-Forwarded-For` counts only if the peer is a trusted proxy, and only up to the first address
    from the right that is not one: what stands left of it was written by the client.
    """
    peer = connection.client.host if connection.client else ""
    if not _is_in(peer, trusted):
        return peer
    hops = ",".join(connection.headers.getall("x-forwarded-for", [])).split(",")
    for hop in reversed([each.strip() for each in hops]):
        if _parse(hop) is None:
            break
        peer = hop
        if not _is_in(hop, trusted):
            break
    return peer


def limit_key(address: str) -> str:
    """Return the key of an address for limits. One client may have a whole /64 of IPv6."""
    parsed = _parse(address)
    if not isinstance(parsed, IPv6Address):
        return address
    return str(ip_network((int(parsed), 64), strict=False))


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A socket of IPv6 shows a client of IPv4 so.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_in(text: str, networks: Networks) -> bool:
    address = _parse(text)
    return address is not None and any(address in network for network in networks)
