"""What a local sandbox needs of whatever runs its processes."""

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchflow_contracts.errors import HostError, SandboxError, SandboxLimitError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.running_box import RunningBox
from benchflow_sandbox_native import InitClient, InitError

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.launcher_process.paths import open_strict
from benchflow_sandbox_local.live.lazy import MemoryTransfer
from benchflow_sandbox_local.rootfs.base import Base

from .accounts import AccountBook
from .init_calls import InitCalls
from .launcher import Call, Launcher
from .readiness import readable


class LocalRunningBox(RunningBox, Protocol):
    """One life of a local sandbox."""

    root: int
    """A descriptor of the root directory."""
    netns: int
    """A descriptor of the network namespace; -1 for the host's."""
    listener: socket.socket | None
    """The relay's, until it is taken."""
    accounts: AccountBook

    @property
    def pid(self) -> int:
        """The first process's number on the host; 0 when there is none."""
        ...

    async def ended(self) -> None:
        """Return when the first process is dead."""
        ...

    def close(self) -> None:
        """Let go. Idempotent."""
        ...


_ENOSPC, _EDQUOT = 28, 122


@dataclass(frozen=True, slots=True)
class Place:
    """Where the launcher builds a box."""

    family: str
    box: str
    size: int
    """Bytes that the family's tmpfs may hold."""
    lowers: tuple[str, ...]


class NamespaceRunningBox:
    """The descriptors that lead into a running box. They keep it reachable when frozen."""

    def __init__(self, name: str, notes: dict[str, str], fds: list[int]) -> None:
        self.name = name
        self.notes = notes
        self.pidfd, self.root, self.netns = fds[:3]
        self.accounts = AccountBook(self.root)
        self.listener = socket.socket(fileno=fds[3]) if len(fds) > 3 else None
        self._control = -1
        self._pid = 0
        self._calls = InitCalls(self._client)
        self._filling: MemoryTransfer | None = None
        self._parked = Gate()

    @classmethod
    async def start(
        cls, launcher: Launcher, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> "NamespaceRunningBox":
        """Start a box; its init listens on return.

        Raises:
            SandboxError: It did not start. The launcher still has to `stop` it.
        """
        request = box_request(place, spec, base, group)
        async with launcher.call("start", **request) as call:
            try:
                answer = await call.answer()
            except SandboxError as error:
                fresh = len(place.lowers) == len(base.lowers)
                raise explain(error, spec, fresh=fresh) from error
            machine = cls(place.box, answer.message["notes"], answer.fds)
            try:
                await machine._meet_init(call)
            except BaseException:
                machine.close()
                raise
        return machine

    async def _meet_init(self, call: Call) -> None:
        # The end of this channel means that init listens; an error means it never ran.
        await call.last()
        await self._meet()

    async def _meet(self, *, held: bool = False) -> None:
        try:
            with shortage_is_host_error("start a sandbox"):
                self._control = open_strict(self.root, ".bf")
                self._pid = pid_of(self.pidfd)
            if not held:
                await self.init.ping()
        except (OSError, InitError) as error:
            raise SandboxError(f"the init of {self.name!r} did not start: {error}") from error

    @classmethod
    async def revive(
        cls,
        launcher: Launcher,
        request: dict[str, Any],
        pipes: list[int],
        filling: MemoryTransfer | None = None,
    ) -> "NamespaceRunningBox":
        """Bring a box back from a live image; its processes run on return.

        Raises:
            SandboxError: It did not come back. The launcher still has to `stop` it.
        """
        given = pipes if filling is None else [*pipes, filling.tell]
        async with launcher.call("restore", given, **request) as call:
            if filling is not None:
                filling.started()
            outside = (await call.answer()).fds
            try:
                answer = await call.answer()
            except BaseException:
                for fd in outside:
                    os.close(fd)
                raise
        fds = [*answer.fds, *outside]
        machine = cls(request["box"], answer.message["notes"], fds)
        machine._filling = filling
        try:
            await machine._meet(held=request["stopped"])
        except BaseException:
            machine.close()
            raise
        return machine

    @property
    def init(self) -> InitCalls:
        """The calls to the box's init; raise `SandboxError` once this is closed."""
        if self._control < 0:
            raise SandboxError(f"the box {self.name!r} is gone")
        return self._calls

    def _client(self) -> InitClient | None:
        if self._control < 0:
            return None
        # Through a descriptor of the directory: no name inside can lead this elsewhere.
        return InitClient(Path(f"/proc/self/fd/{self._control}/init.sock"))

    @property
    def fds(self) -> tuple[int, int, int, int]:
        """What leads into the box."""
        return self.pidfd, self.root, self.netns, self._control

    @property
    def came_lazily(self) -> bool:
        """Whether it ran before all of its memory was there."""
        return self._filling is not None

    async def filled(self) -> None:
        """Return when all of its memory is there.

        Raises:
            SnapshotError: It never will be: the box is dead.
        """
        if self._filling is not None:
            await self._filling.done()

    def park(self) -> None:
        """Let go of a box that has ended and comes back, and stay what others hold."""
        self._parked.close()
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for fd in self.fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    def move(self, other: "NamespaceRunningBox") -> None:
        """Become `other`, the next life of the same box. The descriptors keep their numbers."""
        for old, new in zip(self.fds, other.fds, strict=True):
            os.dup2(new, old, inheritable=False)
        self.name, self._pid = other.name, other.pid
        self.listener, other.listener = other.listener, None
        other.close()
        self._parked.open()

    @property
    def closed(self) -> bool:
        """Whether this life is over. A number of a process then means nothing any more."""
        return self._control < 0

    def streams(self) -> Streams:
        """Make the pipes of a new process."""
        return Streams()

    @property
    def pid(self) -> int:
        """The first process's number on the host."""
        return self._pid

    async def ended(self) -> None:
        """Return when the first process, and so the whole box, is dead for good."""
        await readable(self.pidfd)
        while self._parked.is_closed:
            await self._parked.wait_open()
            await readable(self.pidfd)

    def close(self) -> None:
        """Let go of the box. Idempotent."""
        self._parked.open()
        if self._filling is not None:
            self._filling.close()
        fds = self.fds
        self.pidfd = self.root = self.netns = self._control = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        if self.listener is not None:
            self.listener.close()
            self.listener = None


async def stop(launcher: Launcher, box: str, *, drop_family: bool) -> None:
    """Kill a box and remove what it wrote. Also right when it never started."""
    async with asyncio.timeout(30):
        await launcher.ask("stop", box=box, drop_family=drop_family)


def box_request(place: Place, spec: SandboxSpec, base: Base, group: Group) -> dict[str, Any]:
    """Return what the launcher is told of a new box."""
    model = spec.model
    directory = {"path": spec.workdir, "uid": base.uid, "gid": base.gid}
    return {
        "family": place.family,
        "box": place.box,
        "size": place.size,
        "lowers": place.lowers,
        "binds": base.binds,
        "mounts": [{"source": m.source, "target": m.target} for m in spec.mounts],
        "directories": [directory],
        "join": group.join,
        "group": group.clone_into,
        "relay_port": None if model is None else model.port,
    }


def explain(error: SandboxError, spec: SandboxSpec, *, fresh: bool) -> SandboxError:
    """Return what a start that failed means to the caller. Nobody has filled a fresh sandbox."""
    if getattr(error, "errno", None) in {_ENOSPC, _EDQUOT}:
        if fresh:
            return HostError(f"the sandbox did not start: {error}")
        return SandboxLimitError(f"no space for the sandbox: disk_mb is {spec.limits.disk_mb}")
    if isinstance(error, HostError):
        return error
    return SandboxError(f"the sandbox did not start: {error}")


def pid_of(pidfd: int) -> int:
    """Return the number of the process behind a descriptor; raise `OSError` for a dead one."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "Pid":
            return int(value)
    raise OSError(3, "no process behind the descriptor")
