"""Base classes for providers, with a default or a refusal for each optional method."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import time
from typing import get_args

from .container import ContainerOptions
from .door import Endpoint, OutsidePath
from .environment import EnvHandle, EnvState, ProvisionContext, ReadinessProbe, StateSnapshot
from .errors import EnvironmentError_, SandboxUnsupportedError, SnapshotError, UsageError
from .identity import RolloutIdentity
from .process import Process
from .sandbox import (
    ExecResult,
    NetworkMode,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from .sandbox_record import ReapPolicy, SandboxRecord


class BaseSandbox(ABC):
    """A `Sandbox` that needs `exec` and `teardown`.

    `upload` and `download` run `tar` inside. All other methods refuse until a subclass overrides
    them.
    """

    has_users: bool = False
    """Whether `exec` can run as other users. Then `upload` gives the files to its `user`."""

    def __init__(self, id: str, spec: SandboxSpec) -> None:  # noqa: A002 - the contract's name
        self._id = id
        self._spec = spec
        self.is_closed = False
        """Set by `teardown`."""

    @property
    def id(self) -> str:
        """Unique on the machine."""
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        """The spec of its creation."""
        return self._spec

    @abstractmethod
    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end; see `Sandbox.exec`."""

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy in by `tar` inside; see `Sandbox.upload`. The archive must fit into memory."""
        from .tar_transfer import upload_by_tar  # noqa: PLC0415 - it imports asyncio

        await upload_by_tar(self, local, remote, user if self.has_users else None)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy out by `tar` inside; see `Sandbox.download`. It does not work inside `freeze()`."""
        from .tar_transfer import download_by_tar  # noqa: PLC0415 - it imports asyncio

        user = "root" if self.has_users else None
        await download_by_tar(
            self, remote, local, max_bytes=max_bytes, leave_out=leave_out, user=user
        )

    @abstractmethod
    async def teardown(self) -> None:
        """End every process, remove everything and set `is_closed`; see `Sandbox.teardown`."""

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Refuse: processes with live pipes are not supported, so ACP agents are not either."""
        del user, cwd, env
        raise self._lacks(f"live pipes for {cmd!r}")

    async def attach(self, process_id: str) -> Process:
        """Refuse: live snapshots are not supported."""
        raise self._lacks(f"the process {process_id!r} of a live snapshot")

    async def expose_port(self, port: int) -> Endpoint:
        """Refuse: ports are not reachable from the host."""
        raise self._lacks(f"a way from the host to port {port}")

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Refuse: processes cannot be paused."""
        raise self._lacks("a freeze")

    async def snapshot(
        self,
        level: SnapshotLevel = "filesystem",
        *,
        while_frozen: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxImage:
        """Refuse: snapshots are not supported."""
        del while_frozen
        raise self._lacks(f"{level!r} snapshots")

    async def restore(self, image: SandboxImage) -> None:
        """Refuse: snapshots are not supported."""
        raise self._lacks(f"the snapshot {image.ref!r}")

    def _lacks(self, what: str) -> SandboxUnsupportedError:
        return SandboxUnsupportedError(f"sandbox {self.id!r} does not have {what}")


def refuse_unsupported(spec: SandboxSpec, provider: str, can: SandboxCapabilities) -> None:
    """Refuse a spec that the capabilities `can` of `provider` do not support.

    Raises:
        UsageError: The spec names allowed hosts, and its network does not use them.
        SandboxUnsupportedError: The provider does not support a network mode, a build, services,
            options of the container, or doors.
    """
    networks = {spec.network, *spec.switches}
    if spec.allowed_hosts and "allowlist" not in networks:
        raise UsageError(f"network {spec.network!r} does not use allowed hosts")
    lacks: dict[str, str] = {
        f"network {mode!r}": mode for mode in networks if mode not in can.network_modes
    }
    if spec.recipe is not None and not can.builds:
        lacks["images from a Dockerfile"] = "builds"
    if spec.services and not can.services:
        lacks["services beside a sandbox"] = "services"
    if spec.container != ContainerOptions() and not can.services:
        lacks["options of its container"] = "services"
    if spec.served_doors and can.doors is None:
        lacks["doors"] = "doors"
    for path in get_args(OutsidePath):
        if spec.outside_hosts(path) and not _may_reach(spec.network, path, can):
            lacks[f"a door by {path!r} with network {spec.network!r}"] = path
    for what, capability in lacks.items():
        raise SandboxUnsupportedError(
            f"sandbox {provider!r} does not support {what}", hint=can.notes.get(capability)
        )


def _may_reach(network: NetworkMode, path: OutsidePath, can: SandboxCapabilities) -> bool:
    """Return whether a process inside can reach the outside address of a door."""
    if network == "none":
        return False
    if path == "egress":
        return path in can.outside_paths and network in can.egress_networks
    return path in can.outside_paths or (path == "token" and network != "model-only")


class BaseProvider(ABC):
    """A `SandboxProvider` that needs a `name`, `static_capabilities` and `start`.

    It does not support snapshots, and its sandboxes end with the process that created them. A
    subclass that overrides `create` calls `track` for each sandbox.
    """

    name: str
    """The registry name."""
    static_capabilities: SandboxCapabilities = SandboxCapabilities(isolation="none", spawn=False)
    """What the sandboxes can do on every machine. By default, they can do nothing."""
    optional_fields: frozenset[str] = frozenset()
    """The fields among `image`, `bundles`, `entrypoint`, `switches` and `ports` that the provider
    supports. `create` refuses a spec that sets another one of them."""

    def __init__(self, *, allow_unisolated: bool = False) -> None:
        self._allow_unisolated = allow_unisolated
        self._sandboxes: dict[BaseSandbox, SandboxRecord] = {}

    async def capabilities(self) -> SandboxCapabilities:
        """Return `static_capabilities`. Override it if they depend on the machine."""
        return self.static_capabilities

    async def start(self, spec: SandboxSpec) -> BaseSandbox:
        """Start a sandbox of `spec`. `create` has checked the spec against `capabilities()`.

        Raises:
            SandboxUnsupportedError: The provider does not have the image or a path of the spec.
            SandboxError: The sandbox did not start, and nothing is left behind.
        """
        raise NotImplementedError("a provider overrides `start` or `create`")

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> Sandbox:
        """Check `spec` against `capabilities()`, then `start` and `track` a sandbox.

        A provider without isolation refuses, unless the operator has accepted it.
        A provider that supports snapshots overrides `create`.
        """
        if image is not None:
            raise SandboxUnsupportedError(f"sandbox {self.name!r} does not support snapshots")
        can = await self.capabilities()
        if can.isolation == "none" and not self._allow_unisolated:
            raise SandboxUnsupportedError(
                f"sandbox {self.name!r} does not isolate the agent from this machine",
                hint="accept that with --allow-unisolated, or use another sandbox",
            )
        refuse_unsupported(spec, self.name, can)
        self._refuse_fields(spec)
        sandbox = await self.start(spec)
        self.track(sandbox, identity)
        return sandbox

    def _refuse_fields(self, spec: SandboxSpec) -> None:
        used = {
            "image": spec.image not in {None, "host"},
            "bundles": bool(spec.bundles),
            "entrypoint": spec.entrypoint is not None,
            "switches": bool(spec.switches),
            "ports": bool(spec.ports),
        }
        for name, is_used in used.items():
            if is_used and name not in self.optional_fields:
                raise SandboxUnsupportedError(
                    f"sandbox {self.name!r} does not support {name!r} of a sandbox's spec",
                    hint="remove it from the task or environment, or use another sandbox",
                )

    def track(self, sandbox: BaseSandbox, identity: RolloutIdentity | None = None) -> None:
        """List `sandbox` in `sandboxes()` until it is closed. Tear it down in `aclose`."""
        self._sandboxes[sandbox] = SandboxRecord(
            id=sandbox.id,
            provider=self.name,
            owner_alive=True,
            created_at=time(),
            identity=identity or RolloutIdentity(),
        )

    async def ready(self) -> None:  # noqa: B027 - a default, not a hole
        """Do nothing. `create` reports what is missing."""

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the tracked sandboxes that are not closed. With `scope`, yield only its own."""
        for sandbox, record in list(self._sandboxes.items()):
            if sandbox.is_closed:
                self._sandboxes.pop(sandbox, None)
            elif scope is None or scope == record.identity.scope:
                yield record

    async def discard(self, image: SandboxImage) -> None:
        """Do nothing: snapshots are not supported."""
        del image

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Refuse: snapshots are not supported."""
        del to
        raise SandboxUnsupportedError(f"provider {self.name!r} does not save {image.ref!r}")

    async def load(self, saved: Path) -> SandboxImage:
        """Refuse: snapshots are not supported."""
        raise SnapshotError(f"{str(saved)!r} is not a snapshot of provider {self.name!r}")

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Tear down the tracked sandboxes that `policy` selects."""
        records = [record async for record in self.sandboxes() if record.wanted(policy, time())]
        ids = set[str]() if policy.dry_run else {record.id for record in records}
        for sandbox in [sandbox for sandbox in self._sandboxes if sandbox.id in ids]:
            await sandbox.teardown()
        return records

    async def aclose(self) -> None:
        """Tear down all sandboxes of this instance. Idempotent."""
        while self._sandboxes:
            sandbox, _ = self._sandboxes.popitem()
            await sandbox.teardown()


class BaseEnvironment(ABC):
    """An `Environment` that needs a `name`, `provision`, `query` and `teardown`.

    `check` compares states through `query`. The state cannot be rolled back in place, and a fork
    copies it with the files of the sandbox. An environment with servers overrides `quiesce` and
    `live_services`.
    """

    name: str

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return `spec` unchanged."""
        del task_id
        return spec

    @abstractmethod
    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Start the environment; see `Environment.provision`."""

    @abstractmethod
    async def query(self) -> EnvState:
        """Read the state; see `Environment.query`."""

    @abstractmethod
    async def teardown(self) -> None:
        """Stop what `provision` started. Idempotent."""

    async def readiness(self) -> ReadinessProbe:
        """Report readiness: `provision` has waited for it."""
        return ReadinessProbe(ready=True)

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None]:
        """Do nothing: no server writes."""
        yield

    async def snapshot(self) -> StateSnapshot:
        """Refuse: the files of the sandbox contain the state."""
        raise EnvironmentError_(f"environment {self.name!r} does not snapshot its state")

    async def restore(self, snap: StateSnapshot) -> None:
        """Refuse: snapshots of the state are not supported."""
        raise EnvironmentError_(f"environment {self.name!r} does not have snapshot {snap.id!r}")

    async def reset(self) -> None:
        """Refuse: `provision` did not capture a baseline."""
        raise EnvironmentError_(f"environment {self.name!r} does not reset its state")

    async def check(self, expected: EnvState | None = None) -> None:
        """Compare the state with `expected`. Other invariants do not exist."""
        if expected is not None and await self.query() != expected:
            raise SnapshotError(
                f"environment {self.name!r} does not have the state of its checkpoint"
            )

    async def reseed(self, seed: int) -> None:
        """Do nothing: the environment does not use random numbers."""
        del seed

    async def live_services(self) -> Mapping[str, str]:
        """Return an empty mapping: the provider does not start services."""
        return {}
