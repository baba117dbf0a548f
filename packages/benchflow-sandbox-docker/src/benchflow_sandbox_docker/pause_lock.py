"""The re-entrant hold on a container's processes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from benchflow_contracts.errors import (
    SandboxError,
    SandboxFrozenError,
    SandboxUnsupportedError,
)
from benchflow_sandbox_core.shield import finish

from .engine import DockerEngine
from .running_container import RunningContainer

_TRIES = 50
_PAUSES = 5
_NONE = "none"
"""What a rootless engine calls its driver of control groups where it may use none."""


class PauseLock:
    """Counts the holders; the container runs when there is none."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._machine: RunningContainer | None = None
        self._holders: list[asyncio.Task[object] | None] = []
        self._switching = asyncio.Lock()

    @property
    def held(self) -> bool:
        """Whether anyone holds it still."""
        return bool(self._holders)

    @asynccontextmanager
    async def hold(self, machine: RunningContainer) -> AsyncGenerator[None]:
        """Keep the container still for the length of the block."""
        holder = asyncio.current_task()
        async with self._switching:
            self._holders.append(holder)
            if len(self._holders) == 1:
                try:
                    await self._stop(machine)
                except BaseException:
                    self._holders.remove(holder)
                    raise
        try:
            yield
        finally:
            await finish(self._drop(holder))

    async def _stop(self, machine: RunningContainer) -> None:
        await machine.init.rest()
        try:
            await self._pause(machine)
        except BaseException:
            await finish(self._run(machine))
            raise
        self._machine = machine

    async def _pause(self, machine: RunningContainer) -> None:
        for again in range(_PAUSES):
            try:
                await self._engine.do("pause", machine.container)
            except SandboxError as error:
                if (await self._engine.do("info"))["CgroupDriver"] == _NONE:
                    raise SandboxUnsupportedError(
                        f"the engine holds nothing still, since it has no control groups: {error}",
                        hint="use an engine that root runs, or cgroup v2 that is delegated",
                    ) from error
                # On a busy machine the kernel is not done in the time that the engine gives it.
                if not error.retryable or again == _PAUSES - 1:
                    raise
                await asyncio.sleep(again / 5)
            else:
                return

    async def _drop(self, holder: "asyncio.Task[object] | None") -> None:
        async with self._switching:
            if holder in self._holders:
                self._holders.remove(holder)
            machine = self._machine
            if not self._holders and machine is not None:
                self._machine = None
                await self._run(machine)

    async def _run(self, machine: RunningContainer) -> None:
        # The engine may not yet know that it stands still, and one that is gone runs nothing.
        for _ in range(_TRIES):
            with suppress(SandboxError):
                await self._engine.do("unpause", machine.container)
                break
            with suppress(SandboxError):
                state = (await self._engine.do("inspect_container", machine.container))["State"]
                if state["Status"] != "paused":
                    break
        if not machine.closed:
            machine.init.resume()

    def refuse_own_task(self) -> None:
        """Raise when the caller would wait for what it holds still itself."""
        if self._holders and asyncio.current_task() in self._holders:
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    def forget(self) -> None:
        """Let go of a container that is about to be removed. Idempotent."""
        self._holders.clear()
        self._machine = None
