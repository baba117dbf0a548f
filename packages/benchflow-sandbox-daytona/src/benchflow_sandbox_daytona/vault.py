"""Daytona's secrets: a sandbox has a placeholder, and Daytona sends the value to one host."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import daytona
from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxLostError, SandboxUnsupportedError
from benchflow_contracts.gateway import MAX_TOKEN_SEC
from benchflow_contracts.sandbox import SandboxSpec

# The SDK's service of secrets lacks its own decorator: it raises errors of generated code.
from daytona._utils.errors import intercept_errors

from .errors import typed_errors

_PREFIX = "benchflow_"
_VALID = timedelta(seconds=MAX_TOKEN_SEC)


def secret_names(spec: SandboxSpec, key: str) -> dict[str, str]:
    """Return the name of the secret of each door that Daytona must add, for a sandbox's key."""
    return {d.name: f"{_PREFIX}{key}_{d.name}" for d in spec.doors if d.path == "egress"}


class Vault:
    """The secrets of BenchFlow in an organization. Each one belongs to one sandbox, by its key."""

    def __init__(self, sdk: daytona.AsyncDaytona) -> None:
        self._create = intercept_errors()(sdk.secret.create)
        self._delete = intercept_errors()(sdk.secret.delete)
        self._list = intercept_errors()(sdk.secret.list)

    async def store(self, door: Door, name: str) -> str:
        """Store the token of a door as the secret `name`; return its placeholder.

        Raises:
            SandboxUnsupportedError: The door has something else than one bearer token.
            SandboxError: Daytona does not store the secret.
        """
        value = door.endpoint.bearer
        if value is None or len(door.headers) != 1:
            raise SandboxUnsupportedError(
                f"Daytona adds one bearer token, and the door {door.name!r} has the headers"
                f" {sorted(door.headers)}",
                hint="use --model-access tunnel",
            )
        params = daytona.CreateSecretParams(name=name, value=value, hosts=[door.endpoint.host])
        with typed_errors("store a secret"):
            try:
                return (await self._create(params)).placeholder
            except daytona.DaytonaConflictError:  # the answer of an earlier try was lost
                page = await self._list(name=name)
                found = [each.placeholder for each in page.items if each.name == name]
                return found[0]

    async def forget(self, key: str) -> None:
        """Delete the secrets of a key, and those whose token has ended by now. Idempotent.

        The runner of an ended one was killed.
        """
        with typed_errors("list the secrets"):
            page = await self._list(name=_PREFIX, limit=200)
        ended = datetime.now(UTC) - _VALID
        for each in page.items:
            is_own = each.name.startswith(f"{_PREFIX}{key}_")
            if is_own or (each.name.startswith(_PREFIX) and each.created_at < ended):
                with suppress(SandboxLostError), typed_errors("delete a secret"):
                    await self._delete(each.id)
