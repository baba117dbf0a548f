"""The Environment plane: the stateful world that the agent acts in."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from ._model import Model
from .door import Endpoint
from .sandbox import Sandbox, SandboxSpec


class StateSnapshot(Model):
    """The world's state at one instant. Its files lie inside the sandbox."""

    id: str
    path: str
    """The directory inside the sandbox, readable by root only."""
    digest: str


class EnvHandle(Model):
    """A provisioned environment."""

    name: str
    services: tuple[str, ...] = ()
    """Names of the services that run."""
    endpoints: Mapping[str, Endpoint] = {}
    """By service name, as seen from inside the sandbox."""


class ReadinessProbe(Model):
    """The outcome of the readiness gate."""

    ready: bool
    checked: Mapping[str, bool] = {}
    """Each probe by its URL or `tcp:port`."""
    error: str | None = None
    waited_sec: float = Field(default=0, ge=0)


class TableState(Model):
    """One table: its rows, or only its size and digest when it is big."""

    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    """The columns of the primary key, where there is one; rows are compared by it."""
    rows: tuple[tuple[Any, ...], ...] | None = None
    """In primary-key order; `None` beyond the row cap. Blobs are `sha256:` digests."""
    row_count: int = Field(ge=0)
    digest: str


class EnvState(Model):
    """The world's real state, so that two of them can be compared.

    `databases` maps a state path, or what a backend calls its database, to its tables.
    """

    databases: Mapping[str, Mapping[str, TableState]] = {}
    files: Mapping[str, str] = {}
    """Digests of state files that are not databases, by path."""


@dataclass(frozen=True, slots=True)
class ProvisionContext:
    """What an environment is provisioned with."""

    sandbox: Sandbox
    task_id: str
    resumed: bool = False
    """The sandbox was made from a checkpoint: its state stands, seed nothing."""
    live_services: Mapping[str, str] | None = None
    """Set in a live child, with `resumed`: what `Environment.live_services` returned. The services
    run already: start nothing, take hold of these, and let servers that `quiesce` held
    go on."""
    state: EnvState | None = None
    """Set in a live child: what `query` showed at that instant. What was held until now
    must still be so."""


class Environment(Protocol):
    """One world, in one sandbox. Made anew for every rollout and every fork.

    `prepare` is called once for a rollout, on an object of its own, before any sandbox exists.
    For each world, the order of calls is `provision`, `readiness`, then any of `query`,
    `snapshot`, `restore`, `reset`, `check`, `reseed`, `quiesce` and `live_services`, and
    `teardown` always.
    """

    @property
    def name(self) -> str:
        """The manifest's name."""
        ...

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return the spec of the sandbox that this world needs."""
        ...

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Start the world. Raises `EnvironmentError_`; what started is stopped again."""
        ...

    async def readiness(self) -> ReadinessProbe:
        """Wait until every probe answers, at most the manifest's timeout."""
        ...

    async def query(self) -> EnvState:
        """Read the state, consistent at one instant, without changing it.

        Works also while the caller holds `sandbox.freeze()`, once the world is ready.
        A world whose servers alone can read their state shows it there only within
        `quiesce()`.
        """
        ...

    def quiesce(self) -> AbstractAsyncContextManager[None]:
        """Keep the world's servers from writing, and their files complete, while held.

        For a checkpoint: entered before `sandbox.freeze()` and left after it. Leaving
        never fails. A live image carries the hold into each child, whose `provision`
        ends it. A world of plain files and SQLite needs none, and does nothing.

        Raises:
            EnvironmentError_: A server did not come to rest; `retryable`. Nothing is held.
        """
        ...

    async def snapshot(self) -> StateSnapshot:
        """Capture the state; right also while services hold it open and write.

        Raises:
            RuntimeError: The environment declares no state.
            EnvironmentError_: It failed; no half snapshot is left.
        """
        ...

    async def restore(self, snap: StateSnapshot) -> None:
        """Roll the world back. Services see it at once, also in WAL mode."""
        ...

    async def reset(self) -> None:
        """Go back to the baseline taken at `provision`."""
        ...

    async def check(self, expected: EnvState | None = None) -> None:
        """Hold the world against its own invariants. Changes nothing.

        With `expected`, the state is also held against it, as `query` would show it: a
        world may prove both by one reading.

        Raises:
            EnvironmentError_: An invariant does not hold, or cannot be checked.
            SnapshotError: The state is not `expected`.
        """
        ...

    async def reseed(self, seed: int) -> None:
        """Give a fork randomness of its own, before its agent is prompted.

        Does nothing when the world declares no such hook.

        Raises:
            EnvironmentError_: The hook failed.
        """
        ...

    async def live_services(self) -> Mapping[str, str]:
        """Return what `ProvisionContext.live_services` needs: the process id of each service.

        Within `quiesce`, also of whatever else holds the world's servers.

        Raises:
            SnapshotError: A service cannot be carried live.
        """
        ...

    async def teardown(self) -> None:
        """Stop the services that this object started, and only those. Idempotent."""
        ...


class EnvironmentFactory(Protocol):
    """Makes one Environment per sandbox.

    An entry point of the group `benchflow.environments` takes the manifest's
    `pathlib.Path` and returns an EnvironmentFactory; it raises `ManifestError`.
    """

    def __call__(self) -> Environment:
        """Return a fresh environment. Starts nothing."""
        ...
