"""The networks of one sandbox and its services."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.service import MAIN

from benchflow_sandbox_docker.engine import BRIDGE, DockerEngine, GoneError
from benchflow_sandbox_docker.labels import PREFIX, ResourceLabel
from benchflow_sandbox_docker.pending_cleanup import PendingCleanup

NETWORK, VOLUME, SERVICE = "network", "volume", "service"
"""The kinds of BenchFlow's resources in the engine."""


class PrivateNetwork:
    """A bridge that only one sandbox and its services use.

    A network that is not public has no route, and the host has no address on it. Only names of
    services are resolved; otherwise the engine would ask the host's resolver.
    """

    def __init__(
        self,
        engine: DockerEngine,
        cleanup: PendingCleanup,
        label: ResourceLabel,
        index: int,
        *,
        public: bool,
    ) -> None:
        self._engine = engine
        self._cleanup = cleanup
        self._label = label
        self.public = public
        self.name = f"{PREFIX}{label.id}" + (f"-n{index}" if index else "")

    async def make(self) -> None:
        """Create the network.

        Raises:
            SandboxError: The engine has no bridges or no free addresses. The error is retryable.
        """
        options = {} if self.public else {"com.docker.network.bridge.inhibit_ipv4": "true"}
        try:
            with self._cleanup.track("network", self.name):
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
                f"cannot create a network for the services of {self._label.id!r}: {error}",
                hint="run fewer rollouts at once, or give dockerd more default-address-pools",
                retryable=True,
            ) from error

    async def join(self, container: str, names: Sequence[str]) -> None:
        """Connect a container under these names."""
        await self._engine.do(
            "connect_container_to_network", container, self.name, aliases=list(names)
        )

    async def leave(self, container: str) -> None:
        """Disconnect a container. This breaks its open connections."""
        await self._engine.do("disconnect_container_from_network", container, self.name)

    async def remove(self) -> None:
        """Remove the network, which must not have containers. Idempotent."""
        await remove_network(self._engine, self.name)


async def remove_network(engine: DockerEngine, name: str) -> None:
    """Remove a network. Idempotent."""
    try:
        await engine.do("remove_network", name)
    except GoneError:
        return


async def remove_volume(engine: DockerEngine, name: str) -> None:
    """Remove a volume. Idempotent."""
    try:
        await engine.do("remove_volume", name)
    except GoneError:
        return


_DEFAULT: Mapping[str, Sequence[str]] = {"default": ()}
_NOWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737)."""
RESOLVERS = Path("/etc/resolv.conf")
"""The resolver configuration of the host, which is also the engine's host."""
_NO_NAMES = {"Dns": [_NOWHERE], "DnsOptions": ["timeout:1", "attempts:1"]}


class SandboxNetworks:
    """Creates the networks before the first container, and removes them after the last."""

    def __init__(
        self, engine: DockerEngine, cleanup: PendingCleanup, label: ResourceLabel, spec: SandboxSpec
    ) -> None:
        self._engine = engine
        self._changes = "public" in spec.switches
        self._public = spec.network == "public" and not self._changes
        """Whether the networks are public. If the mode can change, only the sandbox has a route."""
        self._main = spec.container
        alone = [service.networks for service in spec.services if service.network_of is None]
        names = sorted(
            {name for each in (spec.container.networks, *alone) for name in each or _DEFAULT}
        )
        inner = spec.inner_networks
        self._networks = {
            name: PrivateNetwork(
                engine, cleanup, label, index, public=self._public and name not in inner
            )
            for index, name in enumerate(names)
        }

    async def make(self) -> None:
        """Create the networks; raise `SandboxError` if the engine refuses."""
        for network in self._networks.values():
            await network.make()

    async def remove(self) -> None:
        """Remove the networks, which must not have containers. Idempotent."""
        for network in self._networks.values():
            await network.remove()

    def with_first(
        self, config: Mapping[str, Any], name: str, options: ContainerOptions
    ) -> dict[str, Any]:
        """Return the engine's arguments of a container on its first network.

        The engine accepts one network at creation. `join` connects the container to the others.
        """
        first = self._of(options)[0]
        public = any(network.public for network in self._of(options))
        dns = _names_by_route() if self._changes and name == MAIN else _NO_NAMES
        host = {**config["HostConfig"], **({} if public else dns), "NetworkMode": first.name}
        endpoint = {first.name: {"Aliases": self._names(name, options, first)}}
        return {**config, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": endpoint}}

    async def join(self, container: str, name: str, options: ContainerOptions) -> None:
        """Connect a container to all its networks except the first."""
        for network in self._of(options)[1:]:
            await network.join(container, self._names(name, options, network))

    async def step_aside(self, container: str) -> None:
        """Disconnect the sandbox's container from all networks."""
        for network in self._of(self._main):
            await network.leave(container)

    async def step_back(self, container: str) -> None:
        """Connect the sandbox's container again, unless it was removed."""
        with suppress(GoneError):
            for network in self._of(self._main):
                await network.join(container, self._names(MAIN, self._main, network))

    async def widen(self, container: str, spec: SandboxSpec) -> None:
        """Connect a container in the sandbox's place to the networks of its spec.

        Raises:
            SandboxUnsupportedError: The spec allows less than the networks reach.
        """
        if spec.network == "public" and not self._public:
            await self._engine.do("connect_container_to_network", container, BRIDGE)
        if spec.network != "public" and any(each.public for each in self._of(self._main)):
            raise SandboxUnsupportedError(
                f"the network {spec.network!r} is impossible beside services on a public network",
                hint="give the verifier the agent's network, or restrict the agent's network",
            )

    def _of(self, options: ContainerOptions) -> list[PrivateNetwork]:
        return [self._networks[name] for name in sorted(options.networks or _DEFAULT)]

    def _names(self, name: str, options: ContainerOptions, network: PrivateNetwork) -> list[str]:
        given = options.networks or _DEFAULT
        known = next(each for each, its in self._networks.items() if its is network)
        hostname = [options.hostname] if options.hostname else []
        return [name, *hostname, *given[known]]


def _names_by_route() -> dict[str, Any]:
    """Return the DNS options that use the host's resolvers.

    The engine asks them from the container's network, so without a route they do not answer.
    A resolver on the host's loopback is skipped, because the engine would ask it from the host.
    """
    exists = RESOLVERS.is_file()
    lines = RESOLVERS.read_text("utf-8", "replace").splitlines() if exists else []
    words = [line.split() for line in lines if line.startswith("nameserver")]
    found = [each[1] for each in words if len(each) > 1 and not _is_loopback(each[1])]
    return {**_NO_NAMES, "Dns": found or [_NOWHERE]}


def _is_loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return True
