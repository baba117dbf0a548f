"""The private network of one sandbox and its services."""

from typing import Any

from benchflow_contracts.errors import SandboxError

from benchflow_sandbox_docker.engine import Engine, GoneError
from benchflow_sandbox_docker.labels import PREFIX, Label

NETWORK, VOLUME, SERVICE = "network", "volume", "service"
"""Kinds of what is ours in the engine."""

_NOWHERE = "192.0.2.1"
"""An address that is no host's (RFC 5737)."""


class PrivateNetwork:
    """A bridge on which only one sandbox and its services are.

    Unless it is public there is no way out: none is routed, the host has no address on it,
    and names that are none of a service are asked of nobody, as the engine would otherwise
    ask the host's own resolver for them.
    """

    def __init__(self, engine: Engine, label: Label, *, public: bool) -> None:
        self._engine = engine
        self._label = label
        self._public = public
        self.name = PREFIX + label.id

    async def make(self) -> None:
        """Make it.

        Raises:
            SandboxError: The engine has no bridges, or no addresses left; `retryable` then.
        """
        options = {} if self._public else {"com.docker.network.bridge.inhibit_ipv4": "true"}
        try:
            await self._engine.do(
                "create_network",
                self.name,
                driver="bridge",
                internal=not self._public,
                check_duplicate=True,
                options=options,
                labels=self._label.encode(NETWORK),
            )
        except SandboxError as error:
            raise SandboxError(
                f"there is no network for the services of {self._label.id!r}: {error}",
                hint="fewer rollouts at once, or more default-address-pools of dockerd",
                retryable=True,
            ) from error

    def names(self) -> dict[str, Any]:
        """Return what the engine's `HostConfig` says of names, so that none gets out."""
        if self._public:
            return {}
        return {"Dns": [_NOWHERE], "DnsOptions": ["timeout:1", "attempts:1"]}

    def endpoint(self, aliases: list[str]) -> dict[str, Any]:
        """Return what the engine's `NetworkingConfig` says of one container."""
        return {"EndpointsConfig": {self.name: {"Aliases": aliases}}}

    async def remove(self) -> None:
        """Remove it. No container may be left on it. Idempotent."""
        await remove_network(self._engine, self.name)


async def remove_network(engine: Engine, name: str) -> None:
    """Remove a network. Idempotent."""
    try:
        await engine.do("remove_network", name)
    except GoneError:
        return
