"""A world outside the sandbox, without a server: a counter that an agent increments."""

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from benchflow_contracts.agent import McpServer
from benchflow_contracts.base import BaseEnvironment
from benchflow_contracts.door import Door
from benchflow_contracts.environment import (
    EnvHandle,
    EnvState,
    OutsideState,
    ProvisionContext,
    WorldSnapshots,
)
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.outside import WorldCall, WorldCallHandler
from benchflow_contracts.sandbox import Sandbox
from benchflow_contracts.step import Step
from benchflow_contracts.verdict import RewardEvent

from .faults import FakeFaults, Fault

_DOOR, _PORT = "fake-outside", 8732
_open: "WeakValueDictionary[str, FakeOutsideWorld]" = WeakValueDictionary()


class FakeOutsideWorld(BaseEnvironment):
    """An `OutsideWorld` that counts: each call of `add` earns 1, and the episode is over at `goal`.

    Its door leads nowhere. `act` and `act_through` call the tool as the agent would. With `drifts`
    no other session repeats what this one said. Faults are keyed by the names of the methods.
    """

    def __init__(
        self,
        *,
        name: str = "fake-outside",
        snapshots: WorldSnapshots = "replay",
        goal: int = 3,
        final: float | None = None,
        drifts: bool = False,
        fail_on: Mapping[str, Fault] | None = None,
    ) -> None:
        self.name = name
        self.faults = FakeFaults.of(fail_on, None)
        self.log: list[str] = []
        self.count = 0
        self._snapshots: WorldSnapshots = snapshots
        self._goal = goal
        self._final = final
        self._salt = uuid4().hex if drifts else ""
        self._key = ""
        self._steps: list[str | None] = []
        """The step of each call."""
        self._finals: list[RewardEvent] = []
        self._is_over = False
        self.seed: int | None = None
        """The seed of the opening."""
        self._handlers: list[WorldCallHandler] = []

    @staticmethod
    async def act(sandbox: Sandbox) -> str:
        """Call `add` of the world that a door of `sandbox` leads to."""
        door = sandbox.spec.door(_DOOR)
        assert door is not None, "the sandbox has no door to a FakeOutsideWorld"
        return await FakeOutsideWorld.act_through(door)

    @staticmethod
    async def act_through(door: Door) -> str:
        """Call `add` of the world behind a door; raise `ConnectionError` without its headers."""
        world = _open.get(door.headers.get("X-Fake", ""))
        if world is None:
            raise ConnectionError("nobody answers behind this door")
        return await world.add()

    async def add(self) -> str:
        """Count up, unless the episode is over."""
        await self.faults.raise_or_hang("add")
        if self.terminal:
            return "the episode is over"
        text = self._count_up(None)
        event = RewardEvent(source=self.name, value=1, granularity="step")
        self._report(
            WorldCall(
                operation="call",
                tool="add",
                arguments="{}",
                result=text,
                rewards=(event,),
                finished=self.terminal,
            )
        )
        return text

    @property
    def world_snapshots(self) -> WorldSnapshots:
        """How another session gets the count."""
        return self._snapshots

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """The tool server behind the door."""
        url = f"http://127.0.0.1:{_PORT}/mcp"
        return (McpServer(name=_DOOR, transport="http", url=url),)

    @property
    def doors(self) -> tuple[Door, ...]:
        """The door, without its headers."""
        return (Door(name=_DOOR, upstream="http://127.0.0.1:9", port=_PORT, serves="tools"),)

    async def open_doors(self) -> tuple[Door, ...]:
        """Make the world reachable by `act`."""
        await self._begin("open_doors")
        self._key = uuid4().hex
        _open[self._key] = self
        (door,) = self.doors
        return (door.model_copy(update={"headers": {"X-Fake": self._key}}),)

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Begin at 0, or count up to the state of a checkpoint."""
        await self._begin("provision")
        self.seed = ctx.seed
        if ctx.outside is None:
            self._report(WorldCall(operation="open", result=self.prompt))
            return EnvHandle(name=self.name)
        for step in ctx.outside.data["steps"]:
            self._count_up(step)
        if self._digest() != ctx.outside.digest:
            raise SnapshotError(f"world {self.name!r} did not repeat itself")
        return EnvHandle(name=self.name)

    async def query(self) -> EnvState:
        """Return the digest of the count."""
        await self._begin("query")
        return EnvState(files={"outside": self._digest()})

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None, None]:
        """Only record the call: `act` is instantaneous."""
        await self._begin("quiesce")
        yield

    @property
    def prompt(self) -> str:
        """The text of the first turn."""
        return f"Count to {self._goal}."

    @property
    def terminal(self) -> bool:
        """Whether the goal is reached, or the agent has ended."""
        return self._is_over or self.count >= self._goal

    def reward_events(self) -> Sequence[RewardEvent]:
        """Return 1 for each call, and the final reward."""
        self.faults.raise_fault("reward_events")
        event = RewardEvent(source=self.name, value=1, granularity="step")
        calls = [event.model_copy(update={"step_id": step}) for step in self._steps]
        return [*calls, *self._finals]

    def on_call(self, handler: WorldCallHandler) -> None:
        """Call `handler` after each new exchange."""
        self._handlers.append(handler)

    def end_step(self, step_id: str) -> None:
        """Let the calls since the last step belong to this one."""
        self._steps = [step_id if step is None else step for step in self._steps]

    async def capture(self) -> OutsideState:
        """Return the count, as the steps of its calls."""
        await self._begin("capture")
        if self._snapshots == "none":
            raise SnapshotError(f"world {self.name!r} has no snapshots")
        data: Mapping[str, Any] = {"steps": self._steps}
        return OutsideState(kind=self._snapshots, digest=self._digest(), data=data)

    async def finish(self, steps: Sequence[Step]) -> None:
        """Add the final reward, once."""
        del steps
        await self._begin("finish")
        if self._final is not None and not self._finals:
            self._finals = [RewardEvent(source=self.name, value=self._final)]
        self._is_over = True

    async def teardown(self) -> None:
        """Close the door. Idempotent."""
        await self._begin("teardown")
        _open.pop(self._key, None)

    def _count_up(self, step: str | None) -> str:
        self.count += 1
        self._steps.append(step)
        noise = "" if self.seed is None else f" of seed {self.seed}"
        return f"{self.count}{self._salt}{noise}"

    def _digest(self) -> str:
        text = json.dumps([self.count, self._salt, self.seed])
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def _report(self, call: WorldCall) -> None:
        for handler in self._handlers:
            handler(call)

    async def _begin(self, operation: str) -> None:
        self.log.append(operation)
        await self.faults.raise_or_hang(operation)
