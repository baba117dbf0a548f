"""The host's client of a sandbox's init."""

import asyncio
import errno
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchflow_sandbox_native import protocol
from benchflow_sandbox_native.errors import InitError
from benchflow_sandbox_native.protocol import Reply, SpawnRequest

_NO_RLIMITS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InitClient:
    """Sends requests to the init of one sandbox through its socket.

    The client has no state: each call opens and closes one connection. So a client stays valid
    across a freeze of the sandbox, and any number of tasks of one event loop may share it. The
    caller must be outside of the sandbox's pid namespace: init refuses its own processes.

    A call does not time out: while the sandbox is frozen it waits for the thaw. Cancelling is safe
    at any point: a cancelled `spawn` leaves no process and a cancelled `wait` loses no status.
    Every call raises `InitError`, with stage `"connection"` if init cannot be reached.
    """

    socket_path: Path

    async def ping(self) -> str:
        """Return the version of the running init.

        This is the barrier before a checkpoint. On return, init has closed the connection of this
        call, and each connection that was finished or abandoned before the call. Only the
        connections of other calls that still run are open.
        """
        # Init handles its connections first and then its listener, so one pass may accept this
        # call before it sees the end of an earlier one. The second call is in a later pass.
        await self._exchange(protocol.PING, b"", "ping", linger=True)
        return (await self._exchange(protocol.PING, b"", "ping", linger=True)).text

    async def spawn(  # noqa: PLR0913  # one keyword per property of a process
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        gid: int,
        groups: Sequence[int] = (),
        rlimits: Mapping[int, tuple[int, int]] = _NO_RLIMITS,
        fds: tuple[int, int, int],
        umask: int = 0o022,
        no_new_privs: bool = False,
    ) -> int:
        """Start a program in the sandbox; return its pid there, which is also its group's id.

        The program runs in a new session, with exactly `env` and `fds` (stdin, stdout, stderr).
        The caller must close `fds`; init does not keep copies. A name without a slash is searched
        on the PATH of `env`, without empty entries. A uid other than 0 always gets
        no-new-privileges, and loses all capabilities and the bounding set. `rlimits` are (soft,
        hard) by number.

        Return after a successful exec. The caller must `wait` for each spawned process: init
        stores 4096 children, and then drops the oldest uncollected status.

        Raises:
            InitError: A stage failed, such as `"exec"` with ENOENT or `"cwd"` with EACCES.
            ValueError: An argument has no form in a system call.
        """
        request = SpawnRequest(
            argv,
            env=env,
            cwd=cwd,
            uid=uid,
            gid=gid,
            groups=groups,
            rlimits=rlimits,
            umask=umask,
            no_new_privs=no_new_privs,
        )
        operation = f"spawn of {argv[0]!r}" if argv else "spawn"
        return (await self._exchange(protocol.SPAWN, request.encode(), operation, fds=fds)).value

    async def wait(self, pid: int) -> int:
        """Wait for the end of a spawned process; return its status as a shell reports it.

        128+n means death by signal n. The status can be collected once.

        Raises:
            InitError: ESRCH at `"wait"`: the child is unknown, or its status was collected before.
        """
        body = protocol.encode_wait(pid)
        return (await self._exchange(protocol.WAIT, body, f"wait for pid {pid!r}")).value

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send `signal` to the process group that `pid` leads, or only to `pid`.

        A group may outlive its leader and can still get signals. A single `pid` must be a running
        child of init. Signal 0 only checks that the process exists.

        Raises:
            InitError: ESRCH at `"kill"`: no such process. EINVAL at `"request"`: pid 0 or 1.
        """
        body = protocol.encode_kill(pid, signal, group=group)
        await self._exchange(protocol.KILL, body, f"kill of pid {pid!r}")

    async def kill_all(self) -> None:
        """Kill every process of the sandbox except init; return when all of them are reaped.

        Meanwhile init refuses spawns with EBUSY. `wait` still returns the statuses of the killed.
        """
        await self._exchange(protocol.KILL_ALL, b"", "kill_all")

    async def _exchange(
        self,
        code: int,
        body: bytes,
        operation: str,
        *,
        fds: Sequence[int] = (),
        linger: bool = False,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        request = protocol.frame(code, body, operation)
        with _connection(self.socket_path, operation) as connection:
            sent = socket.send_fds(connection, [request], fds)
            if sent < len(request):
                await loop.sock_sendall(connection, memoryview(request)[sent:])
            answer = await loop.sock_recv(connection, protocol.REPLY_SIZE)
            # No await between this and the return of a spawn or wait: after the acknowledgement,
            # a cancellation must not lose the answer.
            connection.send(protocol.ACKNOWLEDGED)
            if linger:
                await loop.sock_recv(connection, 1)
        return protocol.decode_reply(answer, operation)


@contextmanager
def _connection(path: Path, operation: str) -> Generator[socket.socket, None, None]:
    """Connect to the socket at `path` itself.

    An O_PATH descriptor has two reasons: a socket address is limited to 107 bytes, and the file is
    in the sandbox's root, where a symlink could lead to a socket of the host.
    """
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            with connection:
                connection.connect(f"/proc/self/fd/{place}")
                yield connection
        finally:
            os.close(place)
    except OSError as error:
        raise InitError(error.errno or errno.EIO, "connection", operation) from error
