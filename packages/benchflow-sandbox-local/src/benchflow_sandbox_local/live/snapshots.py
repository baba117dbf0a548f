"""Live snapshots of one sandbox: wait until it is idle, freeze it, dump it, and thaw it.

The budget of a provider limits the size of all live images.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.shield import finish_or

from .dump import LossError, TransientDumpError
from .engine import PendingDump

if TYPE_CHECKING:
    from benchflow_sandbox_local.box import Box

WhileFrozen = Callable[[], Awaitable[None]]
"""A function of the caller that runs while the sandbox is frozen."""

_RETRIES = 4
"""Tries after `TransientDumpError`, before the last one. The sandbox runs between two tries."""
_SETTLE_SECONDS = 10.0
"""How long a live snapshot waits for commands, transfers and model calls to end."""
_DRAIN_SECONDS = 2.0
"""How long a live snapshot waits until the sandbox has read data that a child would lose."""
_DRAIN_PAUSE = 0.005


class LiveSnapshots:
    """Takes live snapshots of one sandbox. `work` counts commands and transfers in progress."""

    def __init__(self, box: "Box", processes: ProcessTable, work: Gate) -> None:
        self._box = box
        self._processes = processes
        self._work = work

    async def take(self, while_frozen: WhileFrozen | None) -> SandboxImage:
        """Take a snapshot of the instant that `while_frozen` reads. The sandbox continues.

        Raises:
            SnapshotError: The snapshot failed, or the sandbox is busy.
            HostError: This process has no more open files.
        """
        with shortage_is_host_error("take a live snapshot"):
            if while_frozen is None:
                return await self._shielded(self._take())
            return await self._take_after(while_frozen)

    async def _shielded(self, work: Coroutine[Any, Any, SandboxImage]) -> SandboxImage:
        """Finish an image; discard it when the caller was cancelled."""
        return await finish_or(work, self._box.host.snapshots.discard)

    async def _take_after(self, while_frozen: WhileFrozen) -> SandboxImage:
        """Take a live snapshot of the instant that `while_frozen` reads.

        The engine is ready before the sandbox is frozen. The sandbox continues while the launcher
        computes the digest. A cancellation interrupts `while_frozen`, but not the dump.
        """
        is_frozen = self._box.freezer.is_frozen
        async with self._idle(0 if is_frozen else _SETTLE_SECONDS):
            pass
        began = time.monotonic()
        async with self._dump() as dump, AsyncExitStack() as freeze:
            engine = time.monotonic() - began
            since = await self._freeze_without_loss(dump, freeze, stay_frozen=is_frozen)
            await while_frozen()
            image = await self._shielded(
                self._take_idle(dump, freeze, since, stay_frozen=is_frozen)
            )
        return image.model_copy(update={"took_sec": {"engine": engine, **image.took_sec}})

    async def _take_idle(
        self, dump: PendingDump, freeze: AsyncExitStack, since: float, *, stay_frozen: bool
    ) -> SandboxImage:
        async with self._idle(0):
            self._refuse_calls()
            began = time.monotonic()
            undigested = await dump.write(self._processes, stay_frozen=stay_frozen)
            dumped = time.monotonic()
            await freeze.aclose()
            ended = time.monotonic()
        image = await self._box.host.snapshots.publish(undigested)
        took = {"frozen": ended - since, "dump": dumped - began}
        took["digest"] = time.monotonic() - ended
        return image.model_copy(update={"took_sec": took})

    async def _take(self) -> SandboxImage:
        for _ in range(_RETRIES):
            try:
                return await self._take_once()
            except TransientDumpError:
                if self._box.freezer.is_frozen:
                    raise  # the caller has frozen the sandbox, and only the caller resumes it
        return await self._take_once()

    async def _take_once(self) -> SandboxImage:
        is_frozen = self._box.freezer.is_frozen
        async with self._idle(0 if is_frozen else _SETTLE_SECONDS), self._dump() as dump:
            async with AsyncExitStack() as freeze:
                await self._freeze_without_loss(dump, freeze, stay_frozen=is_frozen)
                self._refuse_calls()
                undigested = await dump.write(self._processes, stay_frozen=is_frozen)
            return await self._box.host.snapshots.publish(undigested)

    @asynccontextmanager
    async def _dump(self) -> AsyncGenerator[PendingDump]:
        box = self._box
        engine = box.host.runtime.live
        await box.running.wait_for_memory()
        need = sum(resident_bytes(pid) for pid in box.group.members())
        with box.host.budget.reserve(need):
            async with engine.dump(box, self._processes) as dump:
                yield dump

    @asynccontextmanager
    async def _idle(self, seconds: float) -> AsyncGenerator[None]:
        """Wait until no command, transfer or call is in progress; block new ones meanwhile."""
        try:
            async with asyncio.timeout(seconds) as limit, self._work.while_closed():
                await self._box.services.drain()
                if not self._box.freezer.is_frozen:  # otherwise nothing inside can answer
                    await self._processes.drop_ended()
                limit.reschedule(None)
                yield
        except TimeoutError as error:
            raise SnapshotError(
                f"sandbox {self._box.name!r} is busy: a command, a transfer or a model call runs",
                hint="take a live snapshot between two of them",
                retryable=True,
            ) from error

    async def _freeze_without_loss(
        self, dump: PendingDump, freeze: AsyncExitStack, *, stay_frozen: bool
    ) -> float:
        """Freeze the sandbox when no child would lose anything; `freeze` thaws it when closed.

        The sandbox runs between two tries, so that it can read its unread data. Return the time at
        which the sandbox was frozen.

        Raises:
            LossError: A child would lose something in each try.
        """
        deadline, pause = time.monotonic() + _DRAIN_SECONDS, _DRAIN_PAUSE
        while True:
            async with AsyncExitStack() as attempt:
                await attempt.enter_async_context(self._box.freezer.while_frozen())
                since = time.monotonic()
                try:
                    await dump.inspect()
                except LossError as error:
                    # Only the caller, who has frozen the sandbox, can let it run.
                    if stay_frozen or not error.retryable or time.monotonic() > deadline:
                        raise
                else:
                    freeze.push_async_exit(attempt.pop_all())
                    return since
            await asyncio.sleep(pause)
            pause *= 2

    def _refuse_calls(self) -> None:
        if self._box.services.in_flight:
            raise SnapshotError(
                f"a call of {self._box.name!r} to the outside is in flight", retryable=True
            )


_MB = 20  # bits


class LiveImageBudget:
    """Limits the bytes of the processes of all live images.

    Several snapshots at once never reserve the same bytes.
    """

    def __init__(self, limit: int, used: Callable[[], int]) -> None:
        self._limit = limit
        self._used = used
        self._reserved = 0

    @contextmanager
    def reserve(self, need: int) -> Generator[None]:
        """Reserve `need` bytes inside the block. After the block, the image itself counts.

        Raises:
            SnapshotError: Fewer bytes are left.
        """
        used = self._used() + self._reserved
        if used + need > self._limit:
            raise SnapshotError(
                f"a live image of about {need >> _MB} MB is over the budget: {used >> _MB} of "
                f"{self._limit >> _MB} MB are used",
                hint="discard images, or raise the provider's live_budget_mb",
            )
        self._reserved += need
        try:
            yield
        finally:
            self._reserved -= need


_OWN = ("RssAnon:", "RssShmem:")


def resident_bytes(pid: int) -> int:
    """Return the bytes of a process that its image must contain; 0 for a dead process."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(_OWN):
                total += int(line.split()[1]) << 10
    return total
