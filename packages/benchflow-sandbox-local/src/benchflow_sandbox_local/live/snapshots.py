"""Live snapshots of one box, from its side: it is idle, it stands still, and it goes on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.shield import finish_or

from benchflow_sandbox_local.host_services import HostServices
from benchflow_sandbox_local.maker import During, Keeper

from .dump import DumpCall, HangUpError, LossError, SocketMakers

if TYPE_CHECKING:
    from benchflow_sandbox_local.sandbox import LocalSandbox

_HANG_UPS = 4
"""More tries of a dump that met a connection of ours; the box runs, and rests, between two."""

SETTLE_SECONDS = 10.0
"""How long a live snapshot waits for commands, transfers and model calls to end."""


_DRAIN_SECONDS = 2.0
"""How long a live snapshot waits for the box to read what a child would lose."""
_DRAIN_PAUSE = 0.005


@dataclass(frozen=True, slots=True)
class _Instant:
    """A frozen box that can be captured."""

    since: float
    makers: SocketMakers


class Forks:
    """Takes the live snapshots of one sandbox."""

    def __init__(
        self,
        sandbox: "LocalSandbox",
        keeper: Keeper,
        freezer: Freezer,
        work: Gate,
        served: HostServices,
    ) -> None:
        self._sandbox = sandbox
        self._keeper = keeper
        self._freezer = freezer
        self._work = work
        self._served = served

    async def take(self, while_frozen: During | None) -> SandboxImage:
        """Take one, of the instant that `while_frozen` reads. The sandbox goes on unharmed.

        Raises:
            SnapshotError: It failed, or the sandbox is busy.
            HostError: This process has no more open files.
        """
        with shortage_is_host_error("take a live snapshot"):
            if while_frozen is None:
                return await self._whole(self._take())
            return await self._take_after(while_frozen)

    async def _whole(self, work: Coroutine[Any, Any, SandboxImage]) -> SandboxImage:
        """Take an image to its end; discard one that nobody waits for any more."""
        return await finish_or(work, self._keeper.discard)

    async def _take_after(self, while_frozen: During) -> SandboxImage:
        """Take a live snapshot of the instant that `while_frozen` reads.

        The engine is ready before the box stops, and the box goes on while the image is
        digested. No more is shielded than what writes the image: `while_frozen` can be cancelled.
        """
        held = self._freezer.is_held
        async with self._idle(0 if held else SETTLE_SECONDS):
            pass
        began = time.monotonic()
        async with self._keeper.forking(self._sandbox) as dump, AsyncExitStack() as still:
            engine = time.monotonic() - began
            instant = await self._stand_still(still, held=held)
            await while_frozen()
            image = await self._whole(self._take_idle(dump, still, instant, held=held))
        return image.model_copy(update={"took_sec": {"engine": engine, **image.took_sec}})

    async def _take_idle(
        self, dump: DumpCall, still: AsyncExitStack, instant: _Instant, *, held: bool
    ) -> SandboxImage:
        async with self._idle(0):
            self._refuse_calls()
            began = time.monotonic()
            forked = await self._keeper.fork(self._sandbox, dump, instant.makers, held=held)
            dumped = time.monotonic()
            await still.aclose()
            ended = time.monotonic()
        image = await self._keeper.publish(forked)
        took = {"frozen": ended - instant.since, "dump": dumped - began}
        took["digest"] = time.monotonic() - ended
        return image.model_copy(update={"took_sec": took})

    async def _take(self) -> SandboxImage:
        for _ in range(_HANG_UPS):
            try:
                return await self._take_once()
            except HangUpError:
                if self._freezer.is_held:
                    raise  # only who holds the box can let it notice
        return await self._take_once()

    async def _take_once(self) -> SandboxImage:
        held = self._freezer.is_held
        async with self._idle(0 if held else SETTLE_SECONDS):
            return await self._taken(held=held)

    @asynccontextmanager
    async def _idle(self, seconds: float) -> AsyncGenerator[None]:
        """Wait until the host has nothing under way inside, and keep it so for the block."""
        try:
            async with asyncio.timeout(seconds) as limit, self._work.while_closed():
                await self._served.drain()
                if not self._freezer.is_held:  # otherwise nobody inside can be asked
                    await self._sandbox.forget_ended()
                limit.reschedule(None)
                yield
        except TimeoutError as error:
            raise SnapshotError(
                f"sandbox {self._sandbox.id!r} is busy: a command, a transfer or a model call runs",
                hint="take a live snapshot between two of them",
                retryable=True,
            ) from error

    async def _taken(self, *, held: bool) -> SandboxImage:
        async with self._keeper.forking(self._sandbox) as dump:
            async with AsyncExitStack() as still:
                instant = await self._stand_still(still, held=held)
                self._refuse_calls()
                forked = await self._keeper.fork(self._sandbox, dump, instant.makers, held=held)
            return await self._keeper.publish(forked)

    async def _stand_still(self, still: AsyncExitStack, *, held: bool) -> _Instant:
        """Freeze the sandbox until `still` is closed, when no child would lose anything.

        The box runs between two tries, so that it can read what waits to be read.

        Raises:
            LossError: A child would, for all the time that this waits.
        """
        deadline, pause = time.monotonic() + _DRAIN_SECONDS, _DRAIN_PAUSE
        while True:
            async with AsyncExitStack() as tried:
                await tried.enter_async_context(self._freezer.hold())
                since = time.monotonic()
                try:
                    makers = await self._keeper.inspect(self._sandbox)
                except LossError as error:
                    # Only the caller that holds the box can let it run.
                    if held or not error.retryable or time.monotonic() > deadline:
                        raise
                else:
                    still.push_async_exit(tried.pop_all())
                    return _Instant(since, makers)
            await asyncio.sleep(pause)
            pause *= 2

    def _refuse_calls(self) -> None:
        if self._served.in_flight:
            raise SnapshotError(
                f"a call of {self._sandbox.id!r} to the outside is in flight", retryable=True
            )
