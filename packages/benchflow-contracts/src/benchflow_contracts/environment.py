"""The Environment plane: the stateful world that the agent acts in."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field

from ._model import RareModel
from .door import Endpoint
from .sandbox import Sandbox, SandboxSpec


class StateSnapshot(RareModel):
    """The world's state at one instant. Its files are inside the sandbox."""

    id: str
    path: str
    """The directory inside the sandbox, readable by root only."""
    digest: str


class EnvHandle(RareModel):
    """A provisioned environment."""

    name: str
    services: tuple[str, ...] = ()
    """Names of the services that run."""
    endpoints: Mapping[str, Endpoint] = {}
    """By service name, as seen from inside the sandbox."""


class ReadinessProbe(RareModel):
    """The outcome of the readiness gate."""

    ready: bool
    checked: Mapping[str, bool] = {}
    """Whether each probe answered, by its URL or `tcp:port`."""
    error: str | None = None
    waited_sec: float = Field(default=0, ge=0)


class TableState(RareModel):
    """One table: its rows, or only its size and digest if it is large."""

    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    """The columns of the primary key, if there is one. Rows are compared by the key."""
    rows: tuple[tuple[Any, ...], ...] | None = None
    """In primary-key order; `None` beyond the row cap. Blobs are `sha256:` digests."""
    row_count: int = Field(ge=0)
    digest: str


class EnvState(RareModel):
    """The world's real state. Two states can be compared.

    `databases` maps a state path, or the backend's name of a database, to its tables.
    """

    databases: Mapping[str, Mapping[str, TableState]] = {}
    files: Mapping[str, str] = {}
    """Digests of state files that are not databases, by path."""


class StateRef(RareModel):
    """A recorded `EnvState`, by its content."""

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Of the JSON text of the state, as it is in the file."""
    size: int = Field(ge=0)
    """Bytes of that text."""
    path: str | None = None
    """The file, relative to the rollout's directory; `None` if the rollout has no directory, or if
    the state is inline in a log of version 0.8 and before."""


WorldSnapshots = Literal["live", "state", "replay", "none"]
"""How another session gets the state of an outside world.

`live` and `state`: the world itself copies its state. `replay`: a new session repeats the recorded
calls, and must observe the same. `none`: not at all, so a rollout cannot fork.
"""


class OutsideState(RareModel):
    """What a new session needs to reach the state of an outside world. Can be written as JSON."""

    kind: Literal["live", "state", "replay"]
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Of everything that the agent has observed so far. Equal states have equal digests."""
    data: Mapping[str, Any] = {}
    """JSON values that only the environment reads."""


@dataclass(frozen=True, slots=True)
class ProvisionContext:
    """The input of `Environment.provision`."""

    sandbox: Sandbox
    task_id: str
    resumed: bool = False
    """The sandbox was made from a checkpoint. Keep its state; do not seed."""
    live_services: Mapping[str, str] | None = None
    """Set in a live child, with `resumed`: the result of `Environment.live_services`. The services
    run already: start nothing, attach to them, and release the servers that `quiesce` paused."""
    state: EnvState | None = None
    """Set in a live child: the result of `query` at that instant. State that `quiesce` protected
    must still be equal to it."""
    outside: OutsideState | None = None
    """Set in a child of an `OutsideWorld`: the state that its new session must reach."""
    seed: int | None = None
    """The seed of the rollout, for the random numbers of the world; the same for all its worlds.
    A world of a task with a seed uses this one instead. `reseed` follows, with another seed in
    each fork."""


class Environment(Protocol):
    """One world, in one sandbox. Every rollout and every fork creates a new object.

    `prepare` is called once for each rollout, on a separate object, before a sandbox exists. For
    each world, the calls are `provision`, `readiness`, then any of `query`, `snapshot`, `restore`,
    `reset`, `check`, `reseed`, `quiesce` and `live_services`, and always `teardown` at the end.

    An environment may set an attribute `needs_spawn` (default: False). If it is True, the
    environment starts processes by `Sandbox.spawn`, and sandboxes without it are refused.
    """

    @property
    def name(self) -> str:
        """The manifest's name."""
        ...

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return the spec of the sandbox that this world needs."""
        ...

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Start the world. On `EnvironmentError_`, everything that was started is stopped."""
        ...

    async def readiness(self) -> ReadinessProbe:
        """Wait until every probe answers, at most for the manifest's timeout."""
        ...

    async def query(self) -> EnvState:
        """Read the state, consistent at one instant, without changing it.

        Works also inside `sandbox.freeze()`, once the world is ready. If the state is readable
        only through a running server, call this inside `quiesce()`.
        """
        ...

    def quiesce(self) -> AbstractAsyncContextManager[None]:
        """Stop the world's servers from writing inside this block, with complete files.

        A checkpoint enters the block before `sandbox.freeze()` and leaves it afterwards. Leaving
        never fails. The servers are still paused in each child of a live image, and the child's
        `provision` releases them. A world of plain files and SQLite does nothing here.

        Raises:
            EnvironmentError_: A server did not stop writing; `retryable`. No server is paused.
        """
        ...

    async def snapshot(self) -> StateSnapshot:
        """Capture the state. It is consistent also while services have it open and write.

        Raises:
            RuntimeError: The environment declares no state.
            EnvironmentError_: The snapshot failed, and nothing is left of it.
        """
        ...

    async def restore(self, snap: StateSnapshot) -> None:
        """Roll the world back. Services see the old state at once, also in WAL mode."""
        ...

    async def reset(self) -> None:
        """Restore the baseline that `provision` captured."""
        ...

    async def check(self, expected: EnvState | None = None) -> None:
        """Check the world's own invariants, without changing anything.

        With `expected`, also compare the state with it, as `query` reports the state. A world may
        do both with one reading.

        Raises:
            EnvironmentError_: An invariant does not hold, or cannot be checked.
            SnapshotError: The state is not `expected`.
        """
        ...

    async def reseed(self, seed: int) -> None:
        """Seed the random numbers, before the agent gets a prompt.

        Called in each fork, and in the first world of a rollout that has a seed.

        Do nothing if the world does not declare a hook for it.

        Raises:
            EnvironmentError_: The hook failed.
        """
        ...

    async def live_services(self) -> Mapping[str, str]:
        """Return the process id of each service, for `ProvisionContext.live_services`.

        Inside `quiesce`, also return the processes that keep the servers paused.

        Raises:
            SnapshotError: A service cannot be part of a live image.
        """
        ...

    async def teardown(self) -> None:
        """Stop the services that this object started, and only those. Idempotent."""
        ...


def needs_spawn(environment: Environment) -> bool:
    """Return whether `environment` starts processes by `Sandbox.spawn`."""
    return bool(getattr(environment, "needs_spawn", False))


class EnvironmentFactory(Protocol):
    """Creates one Environment per sandbox.

    An entry point of the group `benchflow.environments` takes the manifest's
    `pathlib.Path` and returns an EnvironmentFactory; it raises `ManifestError`.
    """

    def __call__(self) -> Environment:
        """Return a fresh environment. Starts nothing."""
        ...
