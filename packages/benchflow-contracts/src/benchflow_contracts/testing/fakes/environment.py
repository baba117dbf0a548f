"""A stateful environment without services."""

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from benchflow_contracts.environment import (
    EnvHandle,
    EnvState,
    ProvisionContext,
    ReadinessProbe,
    StateSnapshot,
    TableState,
)
from benchflow_contracts.errors import EnvironmentError_, TransferError
from benchflow_contracts.sandbox import SandboxSpec

from .faults import FakeFaults, Fault
from .world import FakeWorld, Row, Tables

_PATH = "/state"


class FakeEnvironment:
    """A world of tables that lives in the sandbox's files, seeded from `tables`.

    Pass `lambda: FakeEnvironment(...)` where an EnvironmentFactory is wanted.
    `log` names the methods called, in order; faults are keyed by the same names.
    """

    def __init__(
        self,
        tables: Mapping[str, Sequence[Row]] | None = None,
        *,
        name: str = "fake",
        ready: ReadinessProbe | None = None,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.log: list[str] = []
        self._seed: Tables = {key: list(rows) for key, rows in (tables or {}).items()}
        self._name = name
        self._ready = ready or ReadinessProbe(ready=True)
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
        self.faults.strike_now("prepare")
        return spec.model_copy(update={"env": {**spec.env, "FAKE_WORLD_TASK": task_id}})

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Seed the tables, unless the sandbox was made from a checkpoint."""
        await self._begin("provision")
        world = FakeWorld(ctx.sandbox, self.name)
        if not ctx.resumed:
            await world.write(self._seed)
            await world.write(self._seed, "baseline")
        self._world = world
        return EnvHandle(name=self.name)

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
        """Do nothing but note it: nothing writes by itself."""
        await self._begin("quiesce")
        yield

    async def snapshot(self) -> StateSnapshot:
        """Copy the tables to a directory of their own."""
        await self._begin("snapshot")
        tables = await self.world.read()
        ident = uuid4().hex[:12]
        await self.world.write(tables, ident)
        return StateSnapshot(id=ident, path=f"{self.world.home}/{ident}", digest=_digest(tables))

    async def restore(self, snap: StateSnapshot) -> None:
        """Roll the tables back."""
        await self._begin("restore")
        try:
            tables = await self.world.read(snap.id)
        except TransferError as error:
            raise EnvironmentError_(f"state snapshot {snap.id!r} is not here") from error
        await self.world.write(tables)

    async def reset(self) -> None:
        """Go back to the seeded tables."""
        await self._begin("reset")
        await self.world.write(await self.world.read("baseline"))

    async def check(self) -> None:
        """Do nothing but note it: these tables have no invariants."""
        await self._begin("check")

    async def reseed(self, seed: int) -> None:
        """Do nothing but note it: this world has no randomness."""
        del seed
        await self._begin("reseed")

    async def carry(self) -> Mapping[str, str]:
        """Return nothing: there are no services."""
        await self._begin("carry")
        return {}

    async def teardown(self) -> None:
        """Do nothing but note it: no service was started. Idempotent."""
        await self._begin("teardown")

    async def _begin(self, operation: str) -> None:
        self.log.append(operation)
        await self.faults.strike(operation)


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
