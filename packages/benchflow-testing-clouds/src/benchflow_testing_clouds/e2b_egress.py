"""E2B's rules for the way out of a sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .egress import Headers, with_headers

_KEYS = {"allowOut", "denyOut", "rules"}
_ALL = "0.0.0.0/0"


@dataclass(frozen=True)
class Network:
    """The network of a new sandbox, as its request names it."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    headers: Mapping[str, Mapping[str, str]]
    """The headers that rules set, by host."""
    is_open: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Read the body of a request for a sandbox.

        Raises:
            ValueError: E2B would refuse the network.
        """
        network: dict[str, Any] = given.get("network") or {}
        if unknown := network.keys() - _KEYS:
            raise ValueError(f"unknown fields of network: {sorted(unknown)}")
        allowed: list[str] = network.get("allowOut") or []
        denied: list[str] = network.get("denyOut") or []
        rules: dict[str, list[dict[str, dict[str, dict[str, str]]]]] = network.get("rules") or {}
        if missing := rules.keys() - set(allowed):
            raise ValueError(f"rules for hosts that are not allowed: {sorted(missing)}")
        names = [host for host in allowed if host.strip("0123456789./")]
        if names and _ALL not in (*allowed, *denied):
            raise ValueError("names in allowOut need all other traffic in denyOut")
        headers: dict[str, dict[str, str]] = {}
        for host, each in rules.items():
            headers[host] = {}
            for rule in each:
                headers[host].update(rule["transform"]["headers"])
        is_open = bool(given.get("allow_internet_access", True)) and _ALL not in denied
        return cls(tuple(allowed), tuple(denied), headers, is_open)

    def allows(self, host: str) -> bool:
        """Return whether a sandbox reaches a host."""
        return self.is_open or host in self.allowed

    def rewrite(self, host: str, headers: Headers) -> Headers:
        """Return the headers of a request to a host, with those of its rules."""
        return with_headers(headers, self.headers.get(host, {}))
