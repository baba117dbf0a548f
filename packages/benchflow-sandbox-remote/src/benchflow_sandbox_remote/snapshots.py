"""Snapshots of one remote sandbox, by its cloud."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchflow_contracts.errors import SnapshotError
from benchflow_sandbox_core.fifo.streams import FifoStreams
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.host_ports import HostPorts
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.sandbox_process import SandboxProcess

from .cloud import SnapshotSandbox
from .freezer import GuestFreezer
from .images import RemoteImage
from .running_box import RemoteBox

WhileFrozen = Callable[[], Awaitable[None]]
"""A function of the caller that runs while the sandbox is frozen."""
_SETTLE_SECONDS = 10.0
"""How long a live snapshot waits for commands, transfers and calls through doors to end."""
_INPUT_SECONDS = 2.0
"""How long a live snapshot waits until the link has taken the input of every process."""
_INPUT_PAUSE = 0.005


class RemoteSnapshots:
    """Takes snapshots of one sandbox. `work` counts its commands and transfers in progress."""

    def __init__(
        self,
        cloud: SnapshotSandbox,
        box: RemoteBox,
        freezer: GuestFreezer,
        ports: HostPorts,
        served: tuple[int, ...],
    ) -> None:
        self._cloud, self._box = cloud, box
        self._freezer, self._ports = freezer, ports
        self._served = served

    async def files(self, while_frozen: WhileFrozen | None) -> RemoteImage:
        """Take a snapshot of the files, while no process of the sandbox runs."""
        async with self._freezer.while_frozen():
            began = time.monotonic()
            if while_frozen is not None:
                await while_frozen()
            # A cloud may save only what is on the disk.
            await self._cloud.run(["sync"])
            ref = await self._cloud.snapshot("filesystem")
            took = {"frozen": time.monotonic() - began}
        return RemoteImage(ref, "filesystem", self._served, took)

    async def live(
        self, processes: ProcessTable, work: Gate, while_frozen: WhileFrozen | None
    ) -> RemoteImage:
        """Take a snapshot of the files and processes. The sandbox continues.

        Raises:
            SnapshotError: The sandbox is busy, or a process has not read its input.
        """
        seconds = 0.0 if self._freezer.is_frozen else _SETTLE_SECONDS
        if while_frozen is None:
            async with self._idle(work, seconds):
                return await self._copy(processes)
        async with self._idle(work, seconds):
            pass
        async with self._freezer.while_frozen():
            began = time.monotonic()
            await while_frozen()
            async with self._idle(work, 0):
                image = await self._copy(processes)
            took = {**image.took_sec, "frozen": time.monotonic() - began}
        return RemoteImage(image.ref, image.level, image.ports, took, image.box, image.pids)

    @asynccontextmanager
    async def _idle(self, work: Gate, seconds: float) -> AsyncGenerator[None]:
        """Wait until no command, transfer or call is in progress; block new ones meanwhile."""
        try:
            async with asyncio.timeout(seconds) as limit, work.while_closed():
                await self._ports.drain()
                limit.reschedule(None)
                yield
        except TimeoutError as error:
            raise SnapshotError(
                "the sandbox is busy: a command, a transfer or a model call runs",
                hint="take a live snapshot between two of them",
                retryable=True,
            ) from error

    async def _copy(self, table: ProcessTable) -> RemoteImage:
        """Let the cloud copy the sandbox at an instant that is known to the host's side too."""
        await table.drop_ended()
        processes = table.all
        init = self._box.init
        await _wait_for_input(processes)
        await init.rest()
        try:
            for process in processes:
                for end in process.streams.ends:
                    await end.park()
            began = time.monotonic()
            async with self._box.while_paused(_streams(processes)) as state:
                ref = await self._cloud.snapshot("live")
            took = {"dump": time.monotonic() - began}
        finally:
            for process in processes:
                for end in process.streams.ends:
                    end.unpark()
            init.resume()
        pids = {process.id: process.pid for process in processes}
        return RemoteImage(ref, "live", self._served, took, state, pids)


def _streams(processes: list[SandboxProcess]) -> dict[str, FifoStreams]:
    found = dict[str, FifoStreams]()
    for process in processes:
        assert isinstance(process.streams, FifoStreams)
        found[process.id] = process.streams
    return found


async def _wait_for_input(processes: list[SandboxProcess]) -> None:
    """Wait until the link has taken what was written to each process."""
    deadline = time.monotonic() + _INPUT_SECONDS
    for process in processes:
        while count := process.streams.stdin.unread():
            if time.monotonic() > deadline:
                raise SnapshotError(
                    f"process {process.id!r} has not read {count} bytes of its input",
                    hint="snapshot when it waits for input",
                    retryable=True,
                )
            await asyncio.sleep(_INPUT_PAUSE)
