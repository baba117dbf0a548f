"""The network fields of the environment and of each phase."""

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from .record import Record

NetworkMode = Literal["no-network", "public", "allowlist"]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def allowed_host(entry: str) -> str:
    """Return an allowlist entry in its normal form.

    Raises:
        ValueError: The entry is not a host name, `*.` and a host name, IP address or CIDR range.
    """
    host = entry.strip().lower().rstrip(".")
    try:
        if "/" in host:
            return ip_network(host, strict=True).compressed
        if ":" in host:
            return IPv6Address(host).compressed
    except ValueError:
        raise _invalid_host(entry) from None
    name = host.removeprefix("*.")
    # "%" is not a label either, so an IPv6 scope is refused here.
    if not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise _invalid_host(entry)
    if name != host and _is_address(name):
        raise _invalid_host(entry)
    return host


def _invalid_host(entry: str) -> ValueError:
    return ValueError(
        f"{entry[:80]!r} is not a host name, '*.' and a host name, IP address or CIDR range"
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


_NOT_PUBLIC_4 = tuple(
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/3"),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_TUNNELS_6 = IPv6Network("2001::/32"), IPv6Network("2002::/16")
"""Such an address contains an IPv4 address."""


def is_inside_host_network(entry: str) -> bool:
    """Return whether an allowlist entry has addresses of the runner's own machine or networks.

    A name does not: it leads to public addresses only.
    """
    try:
        network = ip_network(entry)
    except ValueError:
        return False
    if isinstance(network, IPv4Network):
        return any(network.overlaps(each) for each in _NOT_PUBLIC_4)
    is_public = network.subnet_of(_PUBLIC_6)
    return not is_public or any(network.overlaps(each) for each in _TUNNELS_6)


AllowedHost = Annotated[str, AfterValidator(allowed_host)]


class NetworkPolicy(Record):
    """The network of one phase."""

    network_mode: NetworkMode = "public"
    allowed_hosts: tuple[AllowedHost, ...] = ()


class PhaseNetwork(Record):
    """The network fields of `[agent]` and `[verifier]`. They override the environment's."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[AllowedHost, ...] | None = None

    @model_validator(mode="after")
    def _check_hosts(self) -> "PhaseNetwork":
        # Harbor also refuses an empty list without a mode.
        if self.network_mode is None and self.allowed_hosts is not None:
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        check_hosts(self.network_mode, self.allowed_hosts)
        return self

    def policy(self) -> NetworkPolicy | None:
        """Return the phase's own policy, or None."""
        if self.network_mode is None:
            return None
        return NetworkPolicy(network_mode=self.network_mode, allowed_hosts=self.allowed_hosts or ())


def check_hosts(mode: NetworkMode | None, hosts: tuple[str, ...] | None) -> None:
    """Refuse hosts if the mode does not use them.

    Raises:
        ValueError: There are hosts and the mode is not `allowlist`.
    """
    if hosts and mode != "allowlist":
        raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
