"""The re-entrant freeze of a sandbox's processes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from benchflow_contracts.errors import SandboxFrozenError, SandboxUnsupportedError

from .descriptors import shortage_is_host_error
from .running_box import Init


class FreezeSwitch(Protocol):
    """The mechanism that freezes a sandbox."""

    @property
    def can_freeze(self) -> bool:
        """Whether `freeze` works."""
        ...

    async def freeze(self) -> None:
        """Freeze the sandbox. On return none of its processes runs."""
        ...

    def thaw(self) -> None:
        """Thaw the sandbox. Idempotent."""
        ...


class Freezer:
    """Counts the tasks that freeze a sandbox. It runs while no task freezes it."""

    def __init__(self, switch: FreezeSwitch, init: Callable[[], Init]) -> None:
        self._switch = switch
        self._find_init = init
        self._resting_init: Init | None = None
        self._holders: list[asyncio.Task[object] | None] = []
        self._stoppers: list[asyncio.Task[object] | None] = []
        """Tasks that freeze the sandbox by another mechanism than the switch."""
        self._lock = asyncio.Lock()

    @property
    def is_frozen(self) -> bool:
        """Whether the sandbox is frozen."""
        return bool(self._holders)

    @asynccontextmanager
    async def while_frozen(self) -> AsyncGenerator[None]:
        """Freeze the sandbox inside the block.

        Raises:
            SandboxUnsupportedError: No control group can do it on this machine.
        """
        holder = asyncio.current_task()
        if holder in self._stoppers:
            yield  # the caller has frozen the sandbox already
            return
        if not self._switch.can_freeze:
            raise SandboxUnsupportedError(
                "this machine cannot freeze a sandbox",
                hint="run where a cgroup v1 freezer or a writable cgroup v2 is mounted",
            )
        async with self._lock:
            self._holders.append(holder)
            if len(self._holders) == 1:
                with shortage_is_host_error("freeze a sandbox"):
                    await self._freeze(holder)
        try:
            yield
        finally:
            self._remove(holder)

    @asynccontextmanager
    async def while_stopped_by(
        self, stop: AbstractAsyncContextManager[None]
    ) -> AsyncGenerator[None]:
        """Freeze the sandbox by `stop` inside the block, where the switch cannot freeze it."""
        holder = asyncio.current_task()
        async with stop:
            self._stoppers.append(holder)
            try:
                yield
            finally:
                self._stoppers.remove(holder)

    async def _freeze(self, holder: "asyncio.Task[object] | None") -> None:
        try:
            # No call to init may be in progress, so that nothing inside refers to the outside.
            await (init := self._find_init()).rest()
            self._resting_init = init
            await self._switch.freeze()
        except BaseException:
            self._remove(holder)
            raise

    def _remove(self, holder: "asyncio.Task[object] | None") -> None:
        if holder in self._holders:
            self._holders.remove(holder)
        if not self._holders:
            self._thaw()

    def _thaw(self) -> None:
        self._switch.thaw()
        init, self._resting_init = self._resting_init, None
        if init is not None:
            init.resume()

    def refuse_own_task(self) -> None:
        """Raise `SandboxFrozenError` if the calling task itself has frozen the sandbox."""
        if asyncio.current_task() in (*self._holders, *self._stoppers):
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    def release(self) -> None:
        """Thaw the sandbox and remove all holders. Idempotent."""
        if self._holders:
            self._holders.clear()
            self._thaw()
