"""The hosts that a sandbox may reach: names and addresses, resolved and checked on the host."""

import asyncio
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

from benchflow_contracts.errors import UsageError

from benchflow_sandbox_core.relay.head import MAX_HEAD

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that resolvers read as an address, each in its own way."""
_SECONDS = 30.0
_UNICAST = IPv6Network("2000::/3")
_TUNNELS = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))
"""Teredo and 6to4: such an address contains an IPv4 address that anyone can choose."""
_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network


class RefusedError(Exception):
    """The sandbox may not reach the host. The sandbox sees the message."""


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Names, names below a name, and networks.

    A name is reached only at its public addresses, and at other addresses if a listed network
    contains them. An address is reached only if it is listed. So the host's loopback and
    networks cannot be reached unless the operator lists them, whatever a name resolves to.
    """

    names: frozenset[str]
    suffixes: tuple[str, ...]
    """Each begins with a dot."""
    networks: tuple[_Network, ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Read `example.org`, `*.example.org`, addresses and CIDR blocks.

        Raises:
            UsageError: An entry has another form.
        """
        names: set[str] = set()
        suffixes: set[str] = set()
        networks: list[_Network] = []
        for entry in entries:
            network = _network(entry)
            name = _name(entry.removeprefix("*."))
            if network is not None:
                networks.append(network)
            elif name is None:
                raise UsageError(
                    f"allowed host {entry!r} is not a name, an address or a network",
                    hint="write example.org, *.example.org, 192.0.2.7 or 192.0.2.0/24",
                )
            elif entry.startswith("*."):
                suffixes.add(f".{name}")
            else:
                names.add(name)
        return cls(frozenset(names), tuple(sorted(suffixes)), tuple(networks))

    async def connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address of `host` that was checked, and only to that.

        Raises:
            RefusedError: The host is not listed, or none of its addresses may be reached.
            OSError: The host does not respond.
        """
        async with asyncio.timeout(_SECONDS):
            last_error: OSError = OSError(f"{host} has no address")
            for address in await self._addresses(host, port):
                try:
                    return await asyncio.open_connection(str(address), port, limit=MAX_HEAD)
                except OSError as error:
                    last_error = error
            raise last_error

    async def _addresses(self, host: str, port: int) -> list[_Address]:
        literal = _address(host)
        if literal is not None:
            if not self._lists(literal):
                raise RefusedError(f"{host} is not an allowed address")
            return [literal]
        name = _name(host)
        if name is None or not (name in self.names or name.endswith(self.suffixes)):
            raise RefusedError(f"{host} is not an allowed host")
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise RefusedError(f"{host} is not an allowed host") from error
        parsed = [_address(str(answer[4][0]).partition("%")[0]) for answer in answers]
        known = [address for address in parsed if address is not None]
        reachable = [address for address in known if self._lists(address) or _is_public(address)]
        if known and not reachable:
            raise RefusedError(f"{host} has no public address and no allowed address")
        return reachable

    def _lists(self, address: _Address) -> bool:
        return any(address in network for network in self.networks)


def _address(text: str) -> _Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # The kernel connects to the IPv4 address in a mapped IPv6 address.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _network(text: str) -> _Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _name(text: str) -> str | None:
    """Return the normal form of a host name, or `None` if it is not a host name."""
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    plain = len(name) < 254 and all(_LABEL.fullmatch(label) for label in labels)
    return name if plain and not _NUMBER.fullmatch(labels[-1]) else None


def _is_public(address: _Address) -> bool:
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, IPv4Address):
        return True
    return address in _UNICAST and not any(address in tunnel for tunnel in _TUNNELS)
