"""The re-entrant hold on a box's processes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from benchflow_contracts.errors import SandboxFrozenError, SandboxUnsupportedError

from .descriptors import shortage_is_host_error
from .running_box import Init


class FreezeSwitch(Protocol):
    """What stops a box."""

    @property
    def can_freeze(self) -> bool:
        """Whether `freeze` works."""
        ...

    async def freeze(self) -> None:
        """Return when no process of the box runs."""
        ...

    def thaw(self) -> None:
        """Let the box run on. Idempotent."""
        ...


class Freezer:
    """Counts the holders; the box runs when there is none."""

    def __init__(self, switch: FreezeSwitch, init: Callable[[], Init]) -> None:
        self._switch = switch
        self._find = init
        self._resting: Init | None = None
        self._holders: list[asyncio.Task[object] | None] = []
        self._stoppers: list[asyncio.Task[object] | None] = []
        """Who holds the box by something other than the switch."""
        self._switching = asyncio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether anyone holds the box still."""
        return bool(self._holders)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Keep the box still for the length of the block.

        Raises:
            SandboxUnsupportedError: No control group can do it on this machine.
        """
        holder = asyncio.current_task()
        if holder in self._stoppers:
            yield  # the caller holds the box still already
            return
        if not self._switch.can_freeze:
            raise SandboxUnsupportedError(
                "nothing on this machine can hold a sandbox still",
                hint="run where a cgroup v1 freezer or a writable cgroup v2 is mounted",
            )
        async with self._switching:
            self._holders.append(holder)
            if len(self._holders) == 1:
                with shortage_is_host_error("hold a sandbox still"):
                    await self._stop(holder)
        try:
            yield
        finally:
            self._drop(holder)

    @asynccontextmanager
    async def hold_by(self, stop: AbstractAsyncContextManager[None]) -> AsyncGenerator[None]:
        """Keep the box still by `stop`, where the switch cannot, for the length of the block."""
        holder = asyncio.current_task()
        async with stop:
            self._stoppers.append(holder)
            try:
                yield
            finally:
                self._stoppers.remove(holder)

    async def _stop(self, holder: "asyncio.Task[object] | None") -> None:
        try:
            # No call to init may be under way: nothing inside then points outside.
            await (init := self._find()).rest()
            self._resting = init
            await self._switch.freeze()
        except BaseException:
            self._drop(holder)
            raise

    def _drop(self, holder: "asyncio.Task[object] | None") -> None:
        if holder in self._holders:
            self._holders.remove(holder)
        if not self._holders:
            self._let_go()

    def _let_go(self) -> None:
        self._switch.thaw()
        init, self._resting = self._resting, None
        if init is not None:
            init.resume()

    def refuse_own_task(self) -> None:
        """Raise when the caller would wait for what it holds still itself."""
        if asyncio.current_task() in (*self._holders, *self._stoppers):
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    def release(self) -> None:
        """Let the box run whoever holds it. Idempotent."""
        if self._holders:
            self._holders.clear()
            self._let_go()
