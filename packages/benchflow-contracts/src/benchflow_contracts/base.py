"""Base classes for providers: what most of them do not have, with its refusal."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from .door import Endpoint
from .environment import EnvHandle, EnvState, ProvisionContext, ReadinessProbe, StateSnapshot
from .errors import EnvironmentError_, SandboxUnsupportedError, SnapshotError
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


class BaseSandbox(ABC):
    """A `Sandbox` with the four methods that every sandbox needs; all others refuse.

    A subclass sets `id` and `spec`, and overrides what its provider can do beyond that.
    """

    def __init__(self, id: str, spec: SandboxSpec) -> None:  # noqa: A002 - the contract's name
        self._id = id
        self._spec = spec

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

    @abstractmethod
    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy in; see `Sandbox.upload`."""

    @abstractmethod
    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy out; see `Sandbox.download`."""

    @abstractmethod
    async def teardown(self) -> None:
        """End every process and remove everything; see `Sandbox.teardown`."""

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


class BaseProvider(ABC):
    """A `SandboxProvider` that needs a `name` and `create`.

    It has no snapshots, and no sandbox outlives the process that made it. A subclass calls
    `track` for each sandbox that it creates, so that `aclose` tears it down.
    """

    name: str
    """The registry name."""
    static_capabilities: SandboxCapabilities = SandboxCapabilities(isolation="none")
    """What the sandboxes can do on every machine. The default is nothing."""

    def __init__(self) -> None:
        self._sandboxes: list[Sandbox] = []

    async def capabilities(self) -> SandboxCapabilities:
        """Return `static_capabilities`. Override it if they depend on the machine."""
        return self.static_capabilities

    @abstractmethod
    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """Start a sandbox; see `SandboxProvider.create`."""

    def track(self, sandbox: Sandbox) -> None:
        """Tear `sandbox` down in `aclose`."""
        self._sandboxes.append(sandbox)

    async def ready(self) -> None:  # noqa: B027 - a default, not a hole
        """Do nothing: `create` says what is missing."""

    async def sandboxes(self) -> AsyncIterator[SandboxRecord]:
        """Yield nothing: no sandbox outlives its process."""
        for record in list[SandboxRecord]():
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
        """Remove nothing: no sandbox outlives its process."""
        del policy
        return []

    async def aclose(self) -> None:
        """Tear down every sandbox of this instance. Idempotent."""
        while self._sandboxes:
            await self._sandboxes.pop().teardown()


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
