"""Daytona's secrets: values that the cloud puts in place of placeholders, outside of sandboxes."""

import secrets
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .egress import Headers

_KEYS = {"name", "value", "description", "hosts"}
_QUERY = {"name", "limit", "cursor", "sort", "order"}


@dataclass
class StoredSecret:
    """One secret of the organization."""

    name: str
    value: str
    hosts: list[str]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    placeholder: str = field(default_factory=lambda: f"dtn_secret_{secrets.token_hex(12)}")
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def allows(self, host: str) -> bool:
        """Return whether the value may be sent to a host. Without hosts, all are allowed."""
        return not self.hosts or any(
            host == each or (each.startswith("*.") and f".{host}".endswith(each[1:]))
            for each in self.hosts
        )


class SecretStore:
    """The secrets of an organization, by name."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredSecret] = {}
        self.replaces = True
        """Whether the cloud replaces placeholders at all."""

    def answer(
        self, method: str, more: list[str], query: str, given: Mapping[str, Any]
    ) -> tuple[int, object]:
        """Return the status and the body of the answer to a request below `/secret`."""
        match (method, *more):
            case ("POST",):
                return self._create(given)
            case ("GET", "paginated"):
                return self._list({k: v[0] for k, v in urllib.parse.parse_qs(query).items()})
            case ("DELETE", identity):
                found = [each.name for each in self.stored.values() if each.id == identity]
                for name in found:
                    del self.stored[name]
                return (204, None) if found else _refusal(404, f"Secret {identity} not found")
            case _:
                return _refusal(404, f"Cannot {method} /secret/{'/'.join(more)}")

    def _create(self, given: Mapping[str, Any]) -> tuple[int, object]:
        if unknown := given.keys() - _KEYS:
            return _refusal(400, f"unknown fields: {sorted(unknown)}")
        if given["name"] in self.stored:
            return _refusal(409, f"Secret with name {given['name']} already exists")
        hosts: list[str] = given.get("hosts") or []
        if any(set(host) & set("/:?@ ") for host in hosts):
            return _refusal(400, f"hosts are names without a port: {hosts}")
        stored = self.stored[given["name"]] = StoredSecret(given["name"], given["value"], hosts)
        return 201, _described(stored)

    def _list(self, query: Mapping[str, str]) -> tuple[int, object]:
        if unknown := query.keys() - _QUERY:
            return _refusal(400, f"unknown parameters: {sorted(unknown)}")
        found = [each for each in self.stored.values() if query.get("name", "") in each.name]
        limit = int(query.get("limit", "100"))
        return 200, {"items": [_described(each) for each in found[:limit]], "total": len(found)}

    def mount(self, wanted: list[dict[str, str]]) -> dict[str, str]:
        """Return the variables of a new sandbox with these secrets: their placeholders.

        Raises:
            LookupError: A secret does not exist.
        """
        pairs = [pair for each in wanted for pair in each.items()]
        return {variable: self.stored[name].placeholder for variable, name in pairs}

    def rewrite(self, placeholders: set[str], host: str, headers: Headers) -> Headers:
        """Return headers with the values of the placeholders that a sandbox may send to a host."""
        for each in list(self.stored.values()) if self.replaces else []:
            if each.placeholder in placeholders and each.allows(host):
                headers = {k: v.replace(each.placeholder, each.value) for k, v in headers.items()}
        return headers


def _refusal(status: int, message: str) -> tuple[int, object]:
    return status, {"statusCode": status, "message": message, "source": "DAYTONA_API"}


def _described(secret: StoredSecret) -> dict[str, Any]:
    """Return a secret without its value, which Daytona never returns."""
    created = secret.created.isoformat()
    return {
        "id": secret.id,
        "name": secret.name,
        "placeholder": secret.placeholder,
        "hosts": secret.hosts,
        "createdAt": created,
        "updatedAt": created,
    }
