"""The re-entrant pause of a container."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from benchflow_contracts.errors import (
    SandboxError,
    SandboxFrozenError,
    SandboxUnsupportedError,
)
from benchflow_sandbox_core.shield import finish

from .engine import DockerEngine, GoneError
from .running_container import RunningContainer

_UNPAUSE_TRIES = 50
_PAUSE_TRIES = 5
_NO_CGROUPS = "none"
"""The cgroup driver of a rootless engine that has no control groups."""
_ALREADY_PAUSED = "already paused"


class PauseLock:
    """Pauses a container while at least one task holds it."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._paused: RunningContainer | None = None
        self._holders: list[asyncio.Task[object] | None] = []
        self._switching = asyncio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether a task has paused the container."""
        return bool(self._holders)

    @asynccontextmanager
    async def hold(self, running: RunningContainer) -> AsyncGenerator[None]:
        """Keep the container paused for the length of the block.

        Raises:
            SandboxUnsupportedError: The engine cannot pause containers.
            SandboxError: The engine did not pause the container.
        """
        holder = asyncio.current_task()
        async with self._switching:
            self._holders.append(holder)
            if len(self._holders) == 1:
                try:
                    await self._stop(running)
                except BaseException:
                    self._holders.remove(holder)
                    raise
        try:
            yield
        finally:
            await finish(self._release(holder))

    async def _stop(self, running: RunningContainer) -> None:
        await running.init.rest()
        try:
            await self._pause(running)
        except BaseException:
            await finish(self._resume(running))
            raise
        self._paused = running

    async def _pause(self, running: RunningContainer) -> None:
        for attempt in range(_PAUSE_TRIES):
            try:
                await self._engine.do("pause", running.container)
            except SandboxError as error:
                await self._refuse_pause(error, is_last=attempt == _PAUSE_TRIES - 1)
                if _ALREADY_PAUSED in str(error):
                    # The engine may not know yet that the last resume worked, or that a failed
                    # pause worked after all. Only a successful pause proves that nothing runs.
                    with suppress(SandboxError):
                        await self._engine.do("unpause", running.container)
                await asyncio.sleep(attempt / 5)
            else:
                return

    async def _refuse_pause(self, error: SandboxError, *, is_last: bool) -> None:
        """Raise unless another attempt may succeed."""
        if (await self._engine.do("info"))["CgroupDriver"] == _NO_CGROUPS:
            raise SandboxUnsupportedError(
                f"the engine cannot pause containers without control groups: {error}",
                hint="use an engine that root runs, or delegate cgroup v2 to the engine",
            ) from error
        # On a busy host, the kernel may not freeze all processes within the engine's time limit.
        if is_last or not (error.retryable or _ALREADY_PAUSED in str(error)):
            raise error

    async def _release(self, holder: "asyncio.Task[object] | None") -> None:
        async with self._switching:
            if holder in self._holders:
                self._holders.remove(holder)
            running = self._paused
            if not self._holders and running is not None:
                self._paused = None
                await self._resume(running)

    async def _resume(self, running: RunningContainer) -> None:
        for _ in range(_UNPAUSE_TRIES):
            with suppress(SandboxError):
                await self._engine.do("unpause", running.container)
                break
            # The event that informs the engine of a pause may be late. So its state does not
            # prove that the container runs; an answer from inside does.
            if running.closed or running.lost or await running.answers():
                break
            with suppress(SandboxError):
                try:
                    state = (await self._engine.do("inspect_container", running.container))["State"]
                except GoneError:
                    break
                if not state["Running"]:
                    break
        if not running.closed:
            running.init.resume()

    def refuse_own_task(self) -> None:
        """Raise `SandboxFrozenError` if the calling task has paused the container."""
        if self._holders and asyncio.current_task() in self._holders:
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    def reset(self) -> None:
        """Remove all holders, before the container is removed. Idempotent."""
        self._holders.clear()
        self._paused = None
