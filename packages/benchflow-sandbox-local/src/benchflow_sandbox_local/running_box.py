"""Running sandboxes of this host: the Protocol, and the sandboxes of the host's own kernel."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from benchflow_contracts.door import Door, DoorPath
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxUnsupportedError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.relay.server import Relay, RelayUpstream
from benchflow_sandbox_core.running_box import RunningBox
from benchflow_sandbox_core.spec import door_ports
from benchflow_sandbox_native import InitClient, InitError

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.launcher_process.paths import open_strict
from benchflow_sandbox_local.live.lazy import MemoryTransfer
from benchflow_sandbox_local.rootfs.base import Base

from .accounts import AccountBook
from .init_calls import InitCalls
from .launcher import Call, Launcher
from .readiness import is_readable, readable

_ENOSPC, _EDQUOT = 28, 122

FileAccess = Literal["shared", "guest", "host"]
"""The files inside, as the host sees them: a separate root on the host's kernel (`shared`), files
that gVisor's kernel writes back late (`guest`), or the host's own files (`host`)."""


class LocalRunningBox(RunningBox, Protocol):
    """The processes of a sandbox, from its first process to its last."""

    notes: dict[str, str]
    """Missing features of this machine that the launcher found."""
    root: int
    """A descriptor of the root directory."""
    accounts: AccountBook

    @property
    def file_access(self) -> FileAccess:
        """How the host sees the files inside."""
        ...

    @property
    def door_path(self) -> DoorPath | None:
        """The path out of each door; None for a sandbox without doors."""
        ...

    @property
    def pid(self) -> int:
        """The first process's number on the host; 0 for a sandbox without a first process."""
        ...

    @property
    def is_lazy(self) -> bool:
        """Whether the sandbox ran before all of its memory was loaded."""
        ...

    async def wait_for_memory(self) -> None:
        """Return when all memory of the sandbox is loaded.

        Raises:
            SnapshotError: The sandbox ended before.
        """
        ...

    async def kill_all(self) -> None:
        """Kill every process but the first.

        Raises:
            SandboxUnsupportedError: A process could escape.
        """
        ...

    async def start_relays(self, doors: Sequence[Door]) -> Mapping[int, Relay]:
        """Serve the doors inside; return the relays by their ports inside.

        A door whose port was not requested at the start of the sandbox has no relay.
        """
        ...

    async def socket_inside(self) -> socket.socket:
        """Return an unconnected TCP socket in the network of the sandbox."""
        ...

    async def dial(self, port: int) -> socket.socket:
        """Return a socket that is connected to a port of the inside's loopback."""
        ...

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        ...

    async def disconnect(self) -> None:
        """End the connections into the sandbox that the host forwards. Idempotent."""
        ...

    async def ended(self) -> None:
        """Return when the first process is dead."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the first process is dead, and no restore has begun."""
        ...

    def close(self) -> None:
        """Close every descriptor that refers to the sandbox. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one start of a sandbox."""

    pool: str
    box: str
    size: int
    """Bytes that the tmpfs of the pool may hold."""
    lowers: tuple[str, ...]


class NamespaceRunningBox:
    """The descriptors of a running sandbox. They stay valid while the sandbox is frozen."""

    file_access: FileAccess = "shared"
    door_path: DoorPath = "socket"

    def __init__(
        self, name: str, notes: dict[str, str], fds: list[int], launcher: Launcher
    ) -> None:
        self.name = name
        self._launcher = launcher
        self.notes = notes
        self.pidfd, self.root, self.netns = fds[:3]
        self.accounts = AccountBook(self.root)
        self.listeners = [socket.socket(fileno=fd) for fd in fds[3:]]
        """The sockets of the doors inside, until `start_relays` takes them."""
        self._control = -1
        self._pid = 0
        self._calls = InitCalls(self._client)
        self._memory: MemoryTransfer | None = None
        self._parked = Gate()

    @classmethod
    async def start(
        cls, launcher: Launcher, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> "NamespaceRunningBox":
        """Start a sandbox; its init listens on return.

        Raises:
            SandboxError: The sandbox did not start. The caller must still send `stop`.
        """
        request = box_request(place, spec, base, group)
        async with launcher.call("start", **request) as call:
            try:
                answer = await call.answer()
            except SandboxError as error:
                fresh = len(place.lowers) == len(base.lowers)
                raise explain(error, spec, fresh=fresh) from error
            running = cls(place.box, answer.message["notes"], answer.fds, launcher)
            try:
                await running._wait_for_init(call)
            except BaseException:
                running.close()
                raise
        return running

    async def _wait_for_init(self, call: Call) -> None:
        # The channel ends when init listens. An error means that init did not start.
        await call.next_message()
        await self._connect_init()

    async def _connect_init(self, *, stopped: bool = False) -> None:
        try:
            with shortage_is_host_error("start a sandbox"):
                self._control = open_strict(self.root, ".bf")
                self._pid = pid_of(self.pidfd)
            if not stopped:
                await self.init.ping()
        except (OSError, InitError) as error:
            raise SandboxError(f"the init of {self.name!r} did not start: {error}") from error

    @classmethod
    async def restore(
        cls,
        launcher: Launcher,
        request: dict[str, Any],
        pipes: list[int],
        memory: MemoryTransfer | None = None,
    ) -> "NamespaceRunningBox":
        """Restore a sandbox from a live image; its processes run on return.

        With `stopped` in the request, its processes are stopped by a signal on return.

        Raises:
            SandboxError: The restore failed. The caller must still send `stop`.
        """
        fds = pipes if memory is None else [*pipes, memory.writer]
        async with launcher.call("restore", fds, **request) as call:
            if memory is not None:
                memory.close_writer()
            outside = (await call.answer()).fds
            try:
                answer = await call.answer()
            except BaseException:
                for fd in outside:
                    os.close(fd)
                raise
        inside = [*answer.fds, *outside]
        running = cls(request["box"], answer.message["notes"], inside, launcher)
        running._memory = memory
        try:
            await running._connect_init(stopped=request["stopped"])
        except BaseException:
            running.close()
            raise
        return running

    @property
    def init(self) -> InitCalls:
        """The calls to the sandbox's init; raise `SandboxError` once this is closed."""
        if self._control < 0:
            raise SandboxError(f"the sandbox {self.name!r} is gone")
        return self._calls

    def _client(self) -> InitClient | None:
        if self._control < 0:
            return None
        # By a descriptor of the directory, so that a symlink inside cannot redirect the path.
        return InitClient(Path(f"/proc/self/fd/{self._control}/init.sock"))

    @property
    def fds(self) -> tuple[int, int, int, int]:
        """The descriptors of the sandbox."""
        return self.pidfd, self.root, self.netns, self._control

    @property
    def is_lazy(self) -> bool:
        """Whether the sandbox ran before all of its memory was loaded."""
        return self._memory is not None

    async def wait_for_memory(self) -> None:
        """Return when all memory of the sandbox is loaded.

        Raises:
            SnapshotError: The sandbox ended before.
        """
        if self._memory is not None:
            await self._memory.wait()

    async def kill_all(self) -> None:
        """Kill every process but the first."""
        await self.init.kill_all()

    async def start_relays(self, doors: Sequence[Door]) -> Mapping[int, Relay]:
        """Serve the doors inside; close the listeners that belong to no door."""
        upstreams = {door.port: RelayUpstream.of(door) for door in doors}
        relays = dict[int, Relay]()
        async with AsyncExitStack() as undo:
            while self.listeners:
                listener = self.listeners.pop()
                port = int(listener.getsockname()[1])
                if port not in upstreams:
                    listener.close()
                    continue
                relays[port] = await Relay.start(listener, upstreams[port])
                undo.push_async_callback(relays[port].aclose)
            undo.pop_all()
        return relays

    async def socket_inside(self) -> socket.socket:
        """Return an unconnected TCP socket in the network namespace of the sandbox."""
        answer = await self._launcher.ask("socket", (self.netns,))
        return socket.socket(fileno=answer.fds[0])

    async def dial(self, port: int) -> socket.socket:
        """Return a socket that is connected to a port of the inside's loopback."""
        return await connect_inside(await self.socket_inside(), port)

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await asyncio.open_connection(sock=await self.dial(port))

    async def disconnect(self) -> None:
        """Return at once: the host forwards no connection of a network namespace."""

    def park(self) -> None:
        """Release the descriptors of a dead sandbox until `move`; callers keep this object."""
        self._parked.close()
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for fd in self.fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    def move(self, other: "NamespaceRunningBox") -> None:
        """Take over the descriptors of `other`, the restored sandbox, under the old numbers."""
        for old, new in zip(self.fds, other.fds, strict=True):
            os.dup2(new, old, inheritable=False)
        self.name, self._pid = other.name, other.pid
        self.listeners, other.listeners = other.listeners, []
        other.close()
        self._parked.open()

    @property
    def closed(self) -> bool:
        """Whether this object is closed. Process numbers inside are then invalid."""
        return self._control < 0

    def streams(self) -> Streams:
        """Make the pipes of a new process."""
        return Streams()

    @property
    def pid(self) -> int:
        """The first process's number on the host."""
        return self._pid

    async def ended(self) -> None:
        """Return when the first process is dead, and so the whole sandbox."""
        await readable(self.pidfd)
        while self._parked.is_closed:
            await self._parked.wait_open()
            await readable(self.pidfd)

    @property
    def has_ended(self) -> bool:
        """Whether the first process is dead, and no restore has begun."""
        return not self.closed and not self._parked.is_closed and is_readable(self.pidfd)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self._parked.open()
        if self._memory is not None:
            self._memory.close()
        fds = self.fds
        self.pidfd = self.root = self.netns = self._control = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        while self.listeners:
            self.listeners.pop().close()


async def connect_inside(inside: socket.socket, port: int) -> socket.socket:
    """Connect a socket that was created in a sandbox to a port of the inside's loopback."""
    try:
        inside.setblocking(False)
        await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
    except BaseException:
        inside.close()
        raise
    return inside


def box_request(place: Place, spec: SandboxSpec, base: Base, group: Group) -> dict[str, Any]:
    """Return the launcher's request for a new sandbox."""
    directory = {"path": spec.workdir, "uid": base.uid, "gid": base.gid}
    return {
        "pool": place.pool,
        "box": place.box,
        "size": place.size,
        "lowers": place.lowers,
        "binds": base.binds,
        "mounts": [{"source": b.source, "target": b.target} for b in spec.bundles],
        "directories": [directory],
        "join": group.join,
        "group": group.clone_into,
        "door_ports": door_ports(spec),
    }


def cannot_kill_all(name: str) -> SandboxUnsupportedError:
    """Return the refusal of a sandbox in which a process could escape from `kill_all`."""
    return SandboxUnsupportedError(
        f"cannot kill all processes of {name!r}: one may escape",
        hint="run where namespaces are allowed",
    )


def explain(error: SandboxError, spec: SandboxSpec, *, fresh: bool) -> SandboxError:
    """Return the error of a failed start. A fresh sandbox has not filled its own disk."""
    if getattr(error, "errno", None) in {_ENOSPC, _EDQUOT}:
        if fresh:
            return HostError(f"the sandbox did not start: {error}")
        return SandboxLimitError(f"no space for the sandbox: disk_mb is {spec.limits.disk_mb}")
    if isinstance(error, HostError):
        return error
    return SandboxError(f"the sandbox did not start: {error}")


def pid_of(pidfd: int) -> int:
    """Return the id of the process of a pidfd; raise `OSError` for a dead process."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "Pid":
            return int(value)
    raise OSError(3, "no process behind the descriptor")
