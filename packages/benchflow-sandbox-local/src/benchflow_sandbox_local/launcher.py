"""The runner's client of the launcher process."""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any, Self

from benchflow_contracts import host_is_short
from benchflow_contracts.errors import HostError, SandboxError
from benchflow_sandbox_core.descriptors import INITIAL_LIMIT, SHORTAGE_ERRNOS

from .launcher_process import wire
from .readiness import readable, writable

_PACKAGE_DIR = str(Path(__file__).parent)
# An empty module replaces this package, so that `__init__` and its imports are not loaded:
# the launcher then starts in 15 ms.
_PROGRAM = f"""
import sys
package = sys.modules[{__package__!r}] = type(sys)({__package__!r})
package.__path__ = [{_PACKAGE_DIR!r}]
from {__package__}.launcher_process.server import main
main()
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One message of the launcher, with the descriptors that it sent."""

    message: dict[str, Any]
    fds: list[int] = field(default_factory=list[int])


class LauncherError(SandboxError):
    """The launcher refused or failed. `errno` is the kernel's error number, if there is one.

    A full disk of a sandbox also gives ENOSPC, so ENOSPC is not a shortage of the host.
    """

    def __init__(self, message: str, errno: int | None, *, ended: bool = False) -> None:
        full = errno in {ENOSPC, EDQUOT}
        short = errno is not None and not full and host_is_short(OSError(errno, message))
        host = short or ended
        # `super()` would be `HostError` in a `LauncherShortError`; it has other parameters.
        SandboxError.__init__(self, message, retryable=host, caused_by="host" if host else None)
        self.errno = errno


class LauncherShortError(LauncherError, HostError):
    """A request failed because the runner or its launcher had no more open files or memory."""


def _error(message: str, errno: int | None) -> LauncherError:
    return (LauncherShortError if errno in SHORTAGE_ERRNOS else LauncherError)(message, errno)


class Call:
    """One pending request. Close the call to ignore further answers."""

    def __init__(self, sock: socket.socket, operation: str) -> None:
        self._sock = sock
        self._operation = operation

    async def answer(self) -> Answer:
        """Return the next message; raise `LauncherError` when it reports a failure."""
        answer = await self.next_message()
        if answer is None:
            raise LauncherError(f"the launcher ended during {self._operation!r}", None, ended=True)
        return answer

    def send_order(self, **order: object) -> None:
        """Send the next order to a request that waits for an order."""
        try:
            wire.send(self._sock, order)
        except OSError as error:
            raise LauncherError(f"{self._operation}: {error}", None) from error

    async def cancel(self) -> None:
        """Cancel a request that waits for an order; return when its process has ended."""
        with suppress(LauncherError, OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while await self.next_message():
                pass

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._sock.close()

    async def next_message(self) -> Answer | None:
        """Return the next message, or `None` after the last one."""
        try:
            await readable(self._sock.fileno())
            received = wire.receive(self._sock)
        except ConnectionError:
            return None
        except wire.NoRoomError as error:
            wire.close(error.fds)
            raise _error(f"{self._operation}: {error}", error.errno) from error
        if received is None:
            return None
        message, fds = received
        if "error" in message:
            raise _error(f"{self._operation}: {message['error']}", message.get("errno"))
        return Answer(message, fds)


class Launcher:
    """A started launcher. The launcher and all its sandboxes end with this process."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", control: socket.socket, name: str
    ) -> None:
        self._process = process
        self._control = control
        self.name = name
        """The name of the file that the launcher locks while it lives."""
        self._control.setblocking(False)

    @classmethod
    async def start(
        cls, root: Path, *, locks: Path, userns: bool, budget: int, disk: Path | None
    ) -> Self:
        """Start a launcher whose private mounts are at `root`, an existing directory.

        The launcher locks a file in `locks`, an existing directory, while it lives. Live images
        use at most `budget` bytes of memory, or are stored below `disk`.
        """
        name = secrets.token_hex(16)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        options = {
            "control": theirs.fileno(),
            "lock": str(locks / name),
            "root": str(root),
            "userns": userns,
            "budget": budget,
            "disk": None if disk is None else str(disk),
            "files": INITIAL_LIMIT,
        }
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as the child has started
                [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
                env={"PATH": os.defpath},
            )
        self = cls(process, ours, name)
        try:
            await Call(ours, "start the launcher").answer()
        except BaseException:
            await self.aclose()
            raise
        return self

    @property
    def pid(self) -> int:
        """The process id of the launcher."""
        return self._process.pid

    @asynccontextmanager
    async def call(
        self, op: str, fds: Sequence[int] = (), **request: object
    ) -> AsyncGenerator[Call]:
        """Send a request and yield its call."""
        call = await self.begin(op, fds, **request)
        try:
            yield call
        finally:
            call.close()

    async def begin(self, op: str, fds: Sequence[int] = (), **request: object) -> Call:
        """Send a request and return its call. The caller must close the call."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise _error(f"{op}: {error}", error.errno) from error
        first, more = tuple(fds[: wire.MAX_FDS - 1]), tuple(fds[wire.MAX_FDS - 1 :])
        message = {"op": op, "more_fds": len(more), **request}
        try:
            with theirs:
                wire.send_more(ours, more)
                await self._send(message, (theirs.fileno(), *first))
        except BaseException:
            ours.close()
            raise
        return Call(ours, op)

    async def ask(self, op: str, fds: Sequence[int] = (), **request: object) -> Answer:
        """Send a request and return its one answer."""
        async with self.call(op, fds, **request) as call:
            return await call.answer()

    async def _send(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        try:
            while True:
                try:
                    wire.send(self._control, message, fds)
                except BlockingIOError:
                    await writable(self._control.fileno())
                else:
                    return
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            reason = f"{message['op']}: cannot reach the launcher: {error}"
            raise _error(reason, number) from error

    async def aclose(self) -> None:
        """End the launcher and, with it, every sandbox. Idempotent."""
        self._control.close()
        if self._process.returncode is None:
            await asyncio.to_thread(self._process.wait)


def mount_point(directory: Path) -> Path:
    """Return the directory in which a launcher mounts its private file systems."""
    return directory / "mnt"
