"""A stateful environment: tables in files, and services that keep state in memory."""

import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from benchflow_contracts.environment import (
    EnvHandle,
    EnvState,
    ProvisionContext,
    ReadinessProbe,
    StateSnapshot,
    TableState,
)
from benchflow_contracts.errors import EnvironmentError_, SandboxError, SnapshotError, TransferError
from benchflow_contracts.sandbox import SandboxSpec

from .faults import FakeFaults, Fault
from .program import FakeProgram
from .sandbox import FakeSandbox
from .world import FakeWorld, Row, Tables

if TYPE_CHECKING:
    from .process import FakeProcess

_PATH = "/state"


class FakeService(FakeProgram):
    """A service that keeps its state in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[str, object] = {}


class FakeEnvironment:
    """A world of tables in the sandbox's files, with `tables` as its first state.

    Each of `services` is a process with a `memory` that only a live fork copies. Services need a
    fake sandbox. `check` fails if `invariant` is false for the tables. Pass
    `lambda: FakeEnvironment(...)` as an EnvironmentFactory. `log` has the names of the called
    methods, in order. Faults are keyed by the same names.
    """

    def __init__(
        self,
        tables: Mapping[str, Sequence[Row]] | None = None,
        *,
        name: str = "fake",
        ready: ReadinessProbe | None = None,
        services: Sequence[str] = (),
        invariant: Callable[[Tables], bool] | None = None,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.log: list[str] = []
        self._seed: Tables = {key: list(rows) for key, rows in (tables or {}).items()}
        self._name = name
        self._ready = ready or ReadinessProbe(ready=True)
        self._services = tuple(services)
        self._invariant = invariant
        self._running: dict[str, FakeProcess] = {}
        self.seeds: list[int] = []
        """The seeds of the calls of `reseed`."""
        self._world: FakeWorld | None = None

    @property
    def name(self) -> str:
        """The world's name."""
        return self._name

    @property
    def world(self) -> FakeWorld:
        """The tables of the provisioned world."""
        if self._world is None:
            raise EnvironmentError_(f"environment {self.name!r} is not provisioned")
        return self._world

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return the spec with the task's id in its environment variables."""
        self.log.append("prepare")
        self.faults.raise_fault("prepare")
        return spec.model_copy(update={"env": {**spec.env, "FAKE_WORLD_TASK": task_id}})

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Seed the tables, unless the sandbox was made from a checkpoint."""
        await self._begin("provision")
        world = FakeWorld(ctx.sandbox, self.name)
        if not ctx.resumed:
            await world.write(self._seed)
            await world.write(self._seed, "baseline")
        self._world = world
        await self._start_services(ctx)
        return EnvHandle(name=self.name, services=tuple(self._running))

    def service(self, name: str) -> FakeService:
        """Return a running service, to read or change its memory."""
        process = self._running.get(name)
        if process is None or not isinstance(process.program, FakeService):
            raise EnvironmentError_(f"service {name!r} does not run in environment {self.name!r}")
        return process.program

    async def _start_services(self, ctx: ProvisionContext) -> None:
        if not self._services:
            return
        if not isinstance(ctx.sandbox, FakeSandbox):
            raise EnvironmentError_("a fake service needs a fake sandbox")
        for name in self._services:
            if ctx.live_services is None:
                self._running[name] = ctx.sandbox.place(FakeService(), name)
                continue
            try:
                self._running[name] = await ctx.sandbox.attach(ctx.live_services.get(name, ""))
            except SandboxError as error:
                raise EnvironmentError_(
                    f"the fork did not copy service {name!r}: {error}"
                ) from error

    async def readiness(self) -> ReadinessProbe:
        """Return the probe that the test set."""
        await self._begin("readiness")
        return self._ready

    async def query(self) -> EnvState:
        """Read every table."""
        await self._begin("query")
        tables = await self.world.read()
        states = {name: _table_state(rows) for name, rows in tables.items()}
        return EnvState(databases={_PATH: states})

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None, None]:
        """Only record the call, because nothing writes by itself."""
        await self._begin("quiesce")
        yield

    async def snapshot(self) -> StateSnapshot:
        """Copy the tables to another directory."""
        await self._begin("snapshot")
        tables = await self.world.read()
        ident = uuid4().hex[:12]
        await self.world.write(tables, ident)
        return StateSnapshot(id=ident, path=f"{self.world.home}/{ident}", digest=_digest(tables))

    async def restore(self, snap: StateSnapshot) -> None:
        """Restore the tables of a snapshot."""
        await self._begin("restore")
        try:
            tables = await self.world.read(snap.id)
        except TransferError as error:
            raise EnvironmentError_(f"state snapshot {snap.id!r} does not exist") from error
        await self.world.write(tables)

    async def reset(self) -> None:
        """Restore the first tables."""
        await self._begin("reset")
        await self.world.write(await self.world.read("baseline"))

    async def check(self, expected: EnvState | None = None) -> None:
        """Compare the tables with the invariant and with an expected state."""
        await self._begin("check")
        if self._invariant is not None and not self._invariant(await self.world.read()):
            raise EnvironmentError_(f"the invariant of environment {self.name!r} is false")
        if expected is not None and await self.query() != expected:
            raise SnapshotError(
                f"environment {self.name!r} does not have the state of its checkpoint"
            )

    async def reseed(self, seed: int) -> None:
        """Record the seed."""
        await self._begin("reseed")
        self.seeds.append(seed)

    async def live_services(self) -> Mapping[str, str]:
        """Return the process id of each service."""
        await self._begin("live_services")
        return {name: process.id for name, process in self._running.items()}

    async def teardown(self) -> None:
        """Stop the services. Idempotent."""
        await self._begin("teardown")
        running, self._running = self._running, {}
        for process in running.values():
            await process.aclose()

    async def _begin(self, operation: str) -> None:
        self.log.append(operation)
        await self.faults.raise_or_hang(operation)


def _table_state(rows: Sequence[Row]) -> TableState:
    width = max((len(row) for row in rows), default=0)
    return TableState(
        columns=tuple(f"c{at}" for at in range(width)),
        rows=tuple(rows),
        row_count=len(rows),
        digest=_digest(rows),
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
