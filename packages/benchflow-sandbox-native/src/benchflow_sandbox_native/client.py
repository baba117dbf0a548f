"""The host's side of a box's init."""

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
    """Talks to the init of one box through its socket, as seen from the host.

    Holds nothing: each call opens one connection and ends it, so a client is valid across a
    freeze of the box and may be shared by any number of tasks of one event loop. The caller must
    live outside of the box's pid namespace: init hangs up on its own processes.

    A call does not time out by itself: while the box is frozen it waits for the thaw. Cancelling
    is safe at any point: a cancelled `spawn` leaves no process and a cancelled `wait` loses no
    status. Every call raises `InitError`, with stage `"connection"` when init is not there.
    """

    socket_path: Path

    async def ping(self) -> str:
        """Return the version of the running init.

        This is the barrier before a checkpoint: on return init has closed each connection that
        was finished or abandoned before the call, this one included, and so holds none except
        those of other calls that still run.
        """
        # Init looks at its connections first and then at its listener: one round may see this
        # call and not yet what came before it. The next call is not in that round any more.
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
        """Start a program in the box and return its pid there, which also is its group's id.

        It runs in a new session with exactly `env` and `fds` (stdin, stdout, stderr), which stay
        the caller's to close; init keeps no copy. A name without a slash is looked up on the PATH
        of `env`, skipping empty entries. A uid other than 0 always gets no-new-privileges and
        loses every capability, the bounding set included. `rlimits` are (soft, hard) by number.

        Returns after a successful exec. Each successful spawn must be collected by `wait`: init
        keeps 4096 children, and forgets the status that is uncollected for the longest time.

        Raises:
            InitError: With the failing stage: ENOENT at `"exec"`, EACCES at `"cwd"`, ...
            ValueError: An argument cannot be expressed to the kernel.
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
        what = f"spawn of {argv[0]!r}" if argv else "spawn"
        return (await self._exchange(protocol.SPAWN, request.encode(), what, fds=fds)).value

    async def wait(self, pid: int) -> int:
        """Wait until a spawned process ended, and return its status as a shell reports it.

        128+n stands for death by signal n. The status can be collected once.

        Raises:
            InitError: ESRCH at `"wait"`: no such child, or its status was collected before.
        """
        body = protocol.encode_wait(pid)
        return (await self._exchange(protocol.WAIT, body, f"wait for pid {pid!r}")).value

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send `signal` to the process group that `pid` leads, or only to `pid`.

        A group may outlive its leader and can still be signalled. A single `pid` must be a
        running child of init. Signal 0 only tests.

        Raises:
            InitError: ESRCH at `"kill"`: nothing to signal. EINVAL at `"request"`: pid 0 or 1.
        """
        body = protocol.encode_kill(pid, signal, group=group)
        await self._exchange(protocol.KILL, body, f"kill of pid {pid!r}")

    async def kill_all(self) -> None:
        """Kill everything in the box but init, and return when all of it is reaped.

        Spawns are refused with EBUSY meanwhile. Statuses of the killed stay collectable.
        """
        await self._exchange(protocol.KILL_ALL, b"", "kill_all")

    async def _exchange(
        self,
        operation: int,
        body: bytes,
        what: str,
        *,
        fds: Sequence[int] = (),
        linger: bool = False,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        request = protocol.frame(operation, body, what)
        with _connection(self.socket_path, what) as connection:
            sent = socket.send_fds(connection, [request], fds)
            if sent < len(request):
                await loop.sock_sendall(connection, memoryview(request)[sent:])
            answer = await loop.sock_recv(connection, protocol.REPLY_SIZE)
            # No await between this and the return of a spawn or wait: once init is told that
            # its answer arrived, a cancellation must not take the answer away from the caller.
            connection.send(protocol.ACKNOWLEDGED)
            if linger:
                await loop.sock_recv(connection, 1)
        return protocol.decode_reply(answer, what)


@contextmanager
def _connection(path: Path, what: str) -> Generator[socket.socket, None, None]:
    """Connect to exactly the socket at `path`, however long the path is.

    Through an O_PATH fd, for two reasons: a socket address holds 107 bytes, and the file lies in
    the box's root, where a symbolic link could lead to a socket of the host.
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
        raise InitError(error.errno or errno.EIO, "connection", what) from error
