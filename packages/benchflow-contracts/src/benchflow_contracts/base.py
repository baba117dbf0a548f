"""Base classes for providers: what most of them do not have, with its refusal."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import time

from .container import ContainerOptions
from .door import Endpoint
from .environment import EnvHandle, EnvState, ProvisionContext, ReadinessProbe, StateSnapshot
from .errors import EnvironmentError_, SandboxUnsupportedError, SnapshotError, UsageError
from .identity import RolloutIdentity
from .process import Process
from .sandbox import (
    ExecResult,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from .sandbox_record import ReapPolicy, SandboxRecord
from .tar_transfer import download_by_tar, upload_by_tar


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
        """What the sandbox was created from."""
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
        """Copy in by `tar` inside; see `Sandbox.upload`. The archive is held in memory."""
        await upload_by_tar(self, local, remote, user if self.has_users else None)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy out by `tar` inside; see `Sandbox.download`. Not possible within `freeze()`."""
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
        """Refuse: no processes with live pipes, so no ACP agents."""
        del user, cwd, env
        raise self._lacks(f"live pipes for {cmd!r}")

    async def attach(self, process_id: str) -> Process:
        """Refuse: no live snapshots."""
        raise self._lacks(f"a carried process {process_id!r}")

    async def expose_port(self, port: int) -> Endpoint:
        """Refuse: no port is reachable from the host."""
        raise self._lacks(f"a way from the host to port {port}")

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Refuse: nothing holds the processes still."""
        raise self._lacks("a freeze")

    async def snapshot(
        self,
        level: SnapshotLevel = "filesystem",
        *,
        while_frozen: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxImage:
        """Refuse: no snapshots."""
        del while_frozen
        raise self._lacks(f"{level!r} snapshots")

    async def restore(self, image: SandboxImage) -> None:
        """Refuse: no snapshots."""
        raise self._lacks(f"the snapshot {image.ref!r}")

    def _lacks(self, what: str) -> SandboxUnsupportedError:
        return SandboxUnsupportedError(f"sandbox {self.id!r} does not have {what}")


def refuse_unsupported(spec: SandboxSpec, provider: str, can: SandboxCapabilities) -> None:
    """Refuse a spec that asks for more than the provider can do.

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
    if spec.doors and can.doors is None:
        lacks["doors"] = "doors"
    for what, capability in lacks.items():
        raise SandboxUnsupportedError(
            f"sandbox {provider!r} does not support {what}", hint=can.notes.get(capability)
        )


class BaseProvider(ABC):
    """A `SandboxProvider` that needs a `name`, `static_capabilities` and `start`.

    It has no snapshots, and no sandbox outlives the process that made it. A subclass calls
    `track` for each sandbox that it creates.
    """

    name: str
    """The registry name."""
    static_capabilities: SandboxCapabilities = SandboxCapabilities(isolation="none", spawn=False)
    """What the sandboxes can do on every machine. The default is nothing."""
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
        """Start a sandbox of `spec`, whose parts all are in `capabilities()`.

        Raises:
            SandboxUnsupportedError: The spec asks for an image or a path that the provider lacks.
            SandboxError: It did not start; nothing is left behind.
        """
        raise NotImplementedError("a provider overrides `start` or `create`")

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> Sandbox:
        """Refuse what is not in `capabilities()`, then `start` and `track` a sandbox.

        A sandbox that does not isolate is refused, too, unless the operator accepts it.
        A provider that has snapshots overrides `create`.
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
        """Do nothing: `create` says what is missing."""

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the tracked sandboxes that are not closed, of all scopes or of one."""
        for sandbox, record in list(self._sandboxes.items()):
            if sandbox.is_closed:
                self._sandboxes.pop(sandbox, None)
            elif scope is None or scope == record.identity.scope:
                yield record

    async def discard(self, image: SandboxImage) -> None:
        """Do nothing: there are no snapshots."""
        del image

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Refuse: there are no snapshots."""
        del to
        raise SandboxUnsupportedError(f"provider {self.name!r} does not save {image.ref!r}")

    async def load(self, saved: Path) -> SandboxImage:
        """Refuse: there are no snapshots."""
        raise SnapshotError(f"{str(saved)!r} is not a snapshot of provider {self.name!r}")

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Tear down the tracked sandboxes that `policy` names."""
        records = [record async for record in self.sandboxes() if record.wanted(policy, time())]
        ids = set[str]() if policy.dry_run else {record.id for record in records}
        for sandbox in [sandbox for sandbox in self._sandboxes if sandbox.id in ids]:
            await sandbox.teardown()
        return records

    async def aclose(self) -> None:
        """Tear down every sandbox of this instance. Idempotent."""
        while self._sandboxes:
            sandbox, _ = self._sandboxes.popitem()
            await sandbox.teardown()


class BaseEnvironment(ABC):
    """An `Environment` that needs a `name`, `provision`, `query` and `teardown`.

    Its state is compared through `query`. It cannot be rolled back in place, and it is forked
    with the files of its sandbox. One with servers overrides `quiesce` and `live_services`.
    """

    name: str

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return `spec` as it is."""
        del task_id
        return spec

    @abstractmethod
    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Start the world; see `Environment.provision`."""

    @abstractmethod
    async def query(self) -> EnvState:
        """Read the state; see `Environment.query`."""

    @abstractmethod
    async def teardown(self) -> None:
        """Stop what `provision` started. Idempotent."""

    async def readiness(self) -> ReadinessProbe:
        """Return at once: `provision` has waited."""
        return ReadinessProbe(ready=True)

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None]:
        """Do nothing: nothing writes by itself."""
        yield

    async def snapshot(self) -> StateSnapshot:
        """Refuse: the state is in the files of the sandbox."""
        raise EnvironmentError_(f"environment {self.name!r} does not snapshot its state")

    async def restore(self, snap: StateSnapshot) -> None:
        """Refuse: there are no snapshots of the state."""
        raise EnvironmentError_(f"environment {self.name!r} does not have snapshot {snap.id!r}")

    async def reset(self) -> None:
        """Refuse: there is no baseline."""
        raise EnvironmentError_(f"environment {self.name!r} does not reset its state")

    async def check(self, expected: EnvState | None = None) -> None:
        """Compare the state with `expected`; there are no other invariants."""
        if expected is not None and await self.query() != expected:
            raise SnapshotError(
                f"environment {self.name!r} does not have the state of its checkpoint"
            )

    async def reseed(self, seed: int) -> None:
        """Do nothing: nothing here is random."""
        del seed

    async def live_services(self) -> Mapping[str, str]:
        """Return nothing: there are no services."""
        return {}
