"""The freeze of a remote sandbox by its guest."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from benchflow_contracts.errors import SandboxError, SandboxFrozenError
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.streams import CONTROL, FifoStreams
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.running_box import Init
from benchflow_sandbox_core.shield import finish

from .records import FrameKind
from .running_box import RemoteBox


class GuestFreezer:
    """Stops the processes of a sandbox while a task holds the freeze.

    Programs of the guest itself, such as those of a download, run in a frozen sandbox.
    """

    def __init__(self, box: RemoteBox) -> None:
        self._box = box
        self._holders: list[asyncio.Task[object] | None] = []
        self._lock = asyncio.Lock()
        self.starting = Gate()
        """Closed while the sandbox is frozen. A process starts inside this gate."""

    @property
    def is_frozen(self) -> bool:
        """Whether a task holds the freeze."""
        return bool(self._holders)

    @asynccontextmanager
    async def while_frozen(self) -> AsyncGenerator[None]:
        """Freeze the sandbox inside the block. Blocks may be nested.

        Raises:
            SandboxError: The processes could not be stopped. They run again.
        """
        holder = asyncio.current_task()
        async with self._lock:
            if not self._holders:
                await self._freeze()
            self._holders.append(holder)
        try:
            yield
        finally:
            await finish(self._leave(holder))

    def refuse_own_task(self) -> None:
        """Raise `SandboxFrozenError` if the calling task itself has frozen the sandbox."""
        if asyncio.current_task() in self._holders:
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    async def _freeze(self) -> None:
        self.starting.close()
        try:
            await self.starting.wait_empty()
            await finish(self._box.order(FrameKind.FREEZE))
        except BaseException:
            await finish(self._thaw())
            raise

    async def _leave(self, holder: "asyncio.Task[object] | None") -> None:
        async with self._lock:
            self._holders.remove(holder)
            if not self._holders:
                await self._thaw()

    async def _thaw(self) -> None:
        try:
            with suppress(SandboxError):  # a sandbox that is gone has no processes
                await self._box.order(FrameKind.THAW)
        finally:
            self.starting.open()


class GatedInit:
    """The init as commands of the user see it: a frozen sandbox starts no process."""

    def __init__(self, init: FifoInit, starting: Gate) -> None:
        self._init = init
        self._starting = starting

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        gid: int,
        groups: Sequence[int] = (),
        rlimits: Mapping[int, tuple[int, int]] = {},
        fds: tuple[int, int, int],
    ) -> int:
        """Start a program when the sandbox is not frozen; see `Init.spawn`."""
        self._starts(fds)
        async with self._starting.while_open():
            return await self._init.spawn(
                argv, env=env, cwd=cwd, uid=uid, gid=gid, groups=groups, rlimits=rlimits, fds=fds
            )

    def _starts(self, fds: tuple[int, int, int]) -> None:
        """Note the pipes of the process that is started next."""

    async def wait(self, pid: int) -> int:
        """Return the exit code as a shell reports it."""
        return await self._init.wait(pid)

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal to a process or to its group."""
        await self._init.kill(pid, signal, group=group)

    async def ping(self) -> None:
        """Return when init has answered."""
        await self._init.ping()

    async def rest(self) -> None:
        """Finish or cancel every call; new calls wait until `resume`."""
        await self._init.rest()

    def resume(self) -> None:
        """Allow calls again."""
        self._init.resume()


class CommandInit(GatedInit):
    """The init for one command whose whole output is captured."""

    def __init__(self, box: RemoteBox, starting: Gate) -> None:
        super().__init__(box.init, starting)
        self._box = box
        self._stream = CONTROL

    def _starts(self, fds: tuple[int, int, int]) -> None:
        self._stream = self._box.stream_of(fds)

    async def wait(self, pid: int) -> int:
        """Return the exit code when the output up to the end of the command is here."""
        code = await super().wait(pid)
        await self._box.drain(self._stream)
        return code


class GatedBox:
    """The sandbox as processes of the user see it."""

    def __init__(self, box: RemoteBox, starting: Gate) -> None:
        self._box = box
        self._starting = starting

    @property
    def init(self) -> Init:
        """The init; raise `SandboxError` after the end."""
        return GatedInit(self._box.init, self._starting)

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._box.closed

    def streams(self) -> FifoStreams:
        """Create the pipes of a new process."""
        return self._box.streams()


class CommandBox(GatedBox):
    """The sandbox for one command whose whole output is captured."""

    def __init__(self, box: RemoteBox, starting: Gate) -> None:
        super().__init__(box, starting)
        self._init = CommandInit(box, starting)

    @property
    def init(self) -> Init:
        """The init of the command."""
        return self._init
