"""The private network of one sandbox and its services."""

from collections.abc import Sequence

from benchflow_contracts.errors import SandboxError

from benchflow_sandbox_docker.engine import Engine, GoneError
from benchflow_sandbox_docker.labels import PREFIX, Label
from benchflow_sandbox_docker.late import Late

NETWORK, VOLUME, SERVICE = "network", "volume", "service"
"""Kinds of what is ours in the engine."""


class PrivateNetwork:
    """A bridge on which only one sandbox and its services are.

    Unless it is public there is no way out: none is routed, the host has no address on it,
    and names that are none of a service are asked of nobody, as the engine would otherwise
    ask the host's own resolver for them.
    """

    def __init__(
        self, engine: Engine, late: Late, label: Label, index: int, *, public: bool
    ) -> None:
        self._engine = engine
        self._late = late
        self._label = label
        self.public = public
        self.name = f"{PREFIX}{label.id}" + (f"-n{index}" if index else "")

    async def make(self) -> None:
        """Make it.

        Raises:
            SandboxError: The engine has no bridges, or no addresses left; `retryable` then.
        """
        options = {} if self.public else {"com.docker.network.bridge.inhibit_ipv4": "true"}
        try:
            with self._late.noted("network", self.name):
                await self._engine.do(
                    "create_network",
                    self.name,
                    driver="bridge",
                    internal=not self.public,
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

    async def join(self, container: str, names: Sequence[str]) -> None:
        """Let a container onto it, by these names."""
        await self._engine.do(
            "connect_container_to_network", container, self.name, aliases=list(names)
        )

    async def leave(self, container: str) -> None:
        """Take a container off it. Its connections there are broken."""
        await self._engine.do("disconnect_container_from_network", container, self.name)

    async def remove(self) -> None:
        """Remove it. No container may be left on it. Idempotent."""
        await remove_network(self._engine, self.name)


async def remove_network(engine: Engine, name: str) -> None:
    """Remove a network. Idempotent."""
    try:
        await engine.do("remove_network", name)
    except GoneError:
        return
