"""A running process of a sandbox, with live pipes."""

import asyncio
import errno
import secrets
import signal

from benchflow_contracts.errors import HostError, SandboxError
from benchflow_contracts.process import ByteReader, ByteWriter
from benchflow_sandbox_native import InitError

from .command import SandboxCommand
from .pipes import Streams
from .running_box import RunningBox, reap
from .shield import finish

_TEST = 0
"""The null signal: init only checks whether the process exists."""


class SandboxProcess:
    """One process that `spawn` started, with pipes of its own."""

    def __init__(self, box: RunningBox, pid: int, streams: Streams, name: str) -> None:
        self._box = box
        self._pid = pid
        self._name = name
        self._streams = streams
        self._code: int | None = None
        self._wait_lock = asyncio.Lock()

    @classmethod
    async def start(cls, box: RunningBox, command: SandboxCommand) -> "SandboxProcess":
        """Start a command with live pipes. See `SandboxCommand.start` for its errors."""
        streams = box.streams()
        try:
            pid = await command.start(box, streams.child)
        except BaseException:
            streams.close()
            raise
        streams.close_child()
        return cls(box, pid, streams, f"p{secrets.token_hex(4)}")

    @property
    def id(self) -> str:
        """Unique within the sandbox; the same in every child of a live snapshot."""
        return self._name

    @property
    def pid(self) -> int:
        """The pid inside the sandbox."""
        return self._pid

    @property
    def streams(self) -> Streams:
        """The host's ends of its pipes."""
        return self._streams

    @property
    def released(self) -> bool:
        """Whether its pipes are released."""
        return all(end.closed for end in self._streams.ends)

    @property
    def stdin(self) -> ByteWriter:
        """The process's standard input."""
        return self._streams.stdin

    @property
    def stdout(self) -> ByteReader:
        """The process's standard output."""
        return self._streams.stdout

    @property
    def stderr(self) -> ByteReader:
        """The process's standard error."""
        return self._streams.stderr

    async def ended(self) -> bool:
        """Return whether it has ended and no process inside has its pipes."""
        if self._streams.used:
            return False
        if self._code is not None or self._box.closed:
            return True
        try:
            await self._box.init.kill(self._pid, _TEST, group=False)
        except InitError as error:
            return error.errno == errno.ESRCH
        return False

    async def wait(self) -> int:
        """Return the exit code: 128 + n for a process that signal n ended."""
        async with self._wait_lock:
            if self._code is None:
                self._code = await self._exit_code()
            return self._code

    async def _exit_code(self) -> int:
        # Without its init, no process of the sandbox can run.
        if self._box.closed:
            return 128 + signal.SIGKILL
        try:
            return await self._box.init.wait(self._pid)
        except InitError as error:
            if error.stage == "connection" or self._box.closed:
                return 128 + signal.SIGKILL
            raise SandboxError(f"process {self._pid} is lost: {error}") from error

    async def kill(self) -> None:
        """Kill the whole process group. Returns when the leader is dead. Idempotent."""
        if self._code is not None or self._box.closed:
            return
        try:
            await self._box.init.kill(self._pid, signal.SIGKILL, group=True)
        except InitError:
            return  # the process or the whole sandbox is dead already
        self._code = await self._reap_killed()

    async def _reap_killed(self) -> int:
        try:
            return await reap(self._box.init, self._pid)
        except HostError:
            raise
        except (InitError, SandboxError):
            return 128 + signal.SIGKILL

    async def aclose(self) -> None:
        """Kill the process if it runs, and release the pipes. Idempotent."""
        try:
            await finish(self.kill())
        finally:
            self._streams.close()
