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

_ROOM = str(Path(__file__).parent)
# An empty module stands for this package, so that its `__init__` and what that imports are not
# loaded: the launcher starts in 15 ms.
_PROGRAM = f"""
import sys
package = sys.modules[{__package__!r}] = type(sys)({__package__!r})
package.__path__ = [{_ROOM!r}]
from {__package__}.launcher_process.server import main
main()
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One message of the launcher, with the descriptors that came along."""

    message: dict[str, Any]
    fds: list[int] = field(default_factory=list[int])


class LauncherError(SandboxError):
    """The launcher refused or failed. `errno` is the kernel's error number, if there is one.

    A full sandbox also gives ENOSPC, so ENOSPC does not mean that the host is short.
    """

    def __init__(self, message: str, errno: int | None, *, ended: bool = False) -> None:
        full = errno in {ENOSPC, EDQUOT}
        short = errno is not None and not full and host_is_short(OSError(errno, message))
        host = short or ended
        # By name: after it in the order of `LauncherShortError` comes `HostError`, with other ones.
        SandboxError.__init__(self, message, retryable=host, caused_by="host" if host else None)
        self.errno = errno


class LauncherShortError(LauncherError, HostError):
    """A request failed because the runner or its launcher had no more open files or memory."""


def _error(message: str, errno: int | None) -> LauncherError:
    return (LauncherShortError if errno in SHORTAGE_ERRNOS else LauncherError)(message, errno)


class Call:
    """One pending request. Close it to ignore further answers."""

    def __init__(self, sock: socket.socket, what: str) -> None:
        self._sock = sock
        self._what = what

    async def answer(self) -> Answer:
        """Return the next message; raise `LauncherError` when it reports a failure."""
        answer = await self.last()
        if answer is None:
            raise LauncherError(f"the launcher ended during {self._what!r}", None, ended=True)
        return answer

    def go_on(self, **word: object) -> None:
        """Send the next order to a request that waits for one."""
        try:
            wire.send(self._sock, word)
        except OSError as error:
            raise LauncherError(f"{self._what}: {error}", None) from error

    async def give_up(self) -> None:
        """Cancel a request that waits for an order; return when nothing of the request is left."""
        with suppress(LauncherError, OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while await self.last():
                pass

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._sock.close()

    async def last(self) -> Answer | None:
        """Return the next message, or `None` when there is none to come."""
        try:
            await readable(self._sock.fileno())
            received = wire.receive(self._sock)
        except ConnectionError:
            return None
        except wire.NoRoomError as error:
            wire.close(error.fds)
            raise _error(f"{self._what}: {error}", error.errno) from error
        if received is None:
            return None
        message, fds = received
        if "error" in message:
            raise _error(f"{self._what}: {message['error']}", message.get("errno"))
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
        """Start a launcher whose private mounts live at `root`, an existing directory.

        The launcher locks a file in `locks`, an existing directory, while it lives. Live images
        take up to `budget` bytes of memory, or are below `disk`.
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
            what = message["op"]
            number = error.errno if isinstance(error, OSError) else None
            raise _error(f"{what}: cannot reach the launcher: {error}", number) from error

    async def aclose(self) -> None:
        """End the launcher and, with it, every sandbox. Idempotent."""
        self._control.close()
        if self._process.returncode is None:
            await asyncio.to_thread(self._process.wait)


def mount_point(directory: Path) -> Path:
    """Return where a launcher mounts its private file systems."""
    return directory / "mnt"
