"""Standby engines: they have started and wait for a sandbox to restore.

Starting an engine takes a third of the time of a small restore.
"""

import os
import shutil
import signal
import socket
import stat
from dataclasses import dataclass
from typing import Any

from benchflow_sandbox_local.launcher_process import syscalls, wire
from benchflow_sandbox_local.launcher_process.layers import live_images
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace
from benchflow_sandbox_local.launcher_process.processes import die_with
from benchflow_sandbox_local.launcher_process.start import namespaces

from . import attributes, file_numbers, socket_owners
from .log import failure_reason, open_errors, report, status_of
from .program import PLACE, ConfinedCriu, EngineError

_FIRST_KEPT = 64
"""The lowest number of a descriptor that the engine keeps; see csrc/engine/orders.c."""
_FDS_PER_MESSAGE = 16
"""On arrival, all descriptors of a message must get numbers below `_FIRST_KEPT`."""


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """A sandbox to restore."""

    request: dict[str, Any]
    root: str
    """The mount point of the sandbox's root."""
    image: str
    work: str
    """The new name of the engine's directory."""
    pipes: list[int]
    """Descriptors of the sandbox's new pipes."""


class StandbyEngine:
    """One engine, a child of this process. It ends when this process ends.

    Below `boxes` are the mounts of all sandboxes; the engine does not see them. `directory` is the
    engine's new directory.
    """

    def __init__(self, engine: ConfinedCriu, boxes: str, directory: str) -> None:
        self.engine = engine
        self.directory = directory
        os.mkdir(directory, 0o700)  # noqa: PTH102 - an internal path
        # `begin` renames the directory, maybe before the engine has opened it.
        tree = syscalls.clone_mount(directory, 0)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = open_errors(directory)
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with(launcher)
                engine.wait(boxes, tree, theirs.fileno(), errors)
            except BaseException as error:  # noqa: BLE001 - read by `failure_reason`
                report(errors, error)
            finally:
                os._exit(127)
        theirs.close()
        os.close(errors)
        os.close(tree)
        try:
            self._network = namespaces.new_namespace()
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            self.close()
            raise

    def begin(self, job: RestoreOrder, reply: socket.socket) -> None:
        """Order the engine to restore a sandbox; send the host's ends of its network to `reply`.

        Raises:
            OSError: The engine is dead, or its image or files are missing. The engine ends.
        """
        live_images.refuse_truncated(job.image, job.request["image_bytes"])
        listeners = list[socket.socket]()
        try:
            for port in job.request["door_ports"]:
                listeners.append(namespaces.listen_in(self._network, port))
            os.rename(self.directory, job.work)  # noqa: PTH104 - internal paths
            self.directory = job.work
            file_numbers.copy_for_engine(job.image, job.work, self.engine.preload)
            attributes.copy_for_engine(job.image, job.work)
            self._join(job.request)
            self._mount(job.root, "root", 0)
            self._mount(job.image, "image", syscalls.MOUNT_ATTR_RDONLY)
            for number, item in enumerate(job.request["mounts"]):
                self._mount(item["source"], f"bf{number}", syscalls.MOUNT_ATTR_RDONLY)
            fds = [self._network, *job.pipes]
            for start in range(0, len(fds), _FDS_PER_MESSAGE):
                self._order("k", fds[start : start + _FDS_PER_MESSAGE])
            if table := socket_owners.table_of(job.image):
                self._send_file("c", table)
            self._send_file("o", _options(job.request).encode())
            ends = tuple(listener.fileno() for listener in listeners)
        except ConnectionError as error:
            # The engine has closed the socket, so it ends. The launcher reaps it later.
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            reason = failure_reason(self.directory, status_of(ended))
            raise EngineError(5, f"{reason} (before it had its orders)") from error
        else:
            wire.send(reply, {"ok": True}, (self._network, *ends))
        finally:
            for listener in listeners:
                listener.close()
            self.close()

    def _join(self, request: dict[str, Any]) -> None:
        for path in request["join"]:
            self._open("g", path, os.O_WRONLY)
        if request["group"] is not None:
            self._open("b", request["group"], os.O_RDONLY)

    def _open(self, letter: str, path: str, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            self._order(letter, [fd])
        finally:
            os.close(fd)

    def _mount(self, source: str, name: str, attributes: int) -> None:
        """Mount the file or directory `source` in the engine's directory."""
        tree = syscalls.clone_mount(source, attributes)
        try:
            if stat.S_ISDIR(os.fstat(tree).st_mode):
                os.mkdir(f"{self.directory}/{name}")  # noqa: PTH102
            else:
                os.mknod(f"{self.directory}/{name}")
            self._order(f"m{PLACE}/{name}", [tree])
        finally:
            os.close(tree)

    def _send_file(self, letter: str, content: bytes) -> None:
        fd = os.memfd_create("order")
        try:
            os.write(fd, content)
            self._order(letter, [fd])
        finally:
            os.close(fd)

    def _order(self, text: str, fds: list[int]) -> None:
        socket.send_fds(self._orders, [text.encode()], fds)

    def close(self) -> None:
        """Release the engine. An engine without complete orders ends. Idempotent."""
        self._orders.close()
        if self._network >= 0:
            os.close(self._network)
            self._network = -1


def _options(request: dict[str, Any]) -> str:
    lines = ["leave-stopped"] if request["stopped"] else []
    lines += ["lazy-pages"] if request["pager"] is not None else []
    names = [f"bf{number}" for number in range(len(request["mounts"]))]
    lines += [f"external mnt[{name}]:{PLACE}/{name}" for name in names]
    keys = ["extnet", *(f"pipe:[{inode}]" for inode in request["pipes"])]
    lines += [f"inherit-fd fd[{fd}]:{key}" for fd, key in enumerate(keys, _FIRST_KEPT)]
    return "".join(f"{line}\n" for line in lines)


_MAX_STANDBY = 2 * (os.cpu_count() or 1)


class StandbyPool:
    """The standby engines of one launcher."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._engine: ConfinedCriu | None = None
        self._ready: list[StandbyEngine] = []
        self._target = 0
        """The number of engines that should wait."""
        self._count = 0
        """The number of engines started so far, for the names of their directories."""

    def expect(self, engine: ConfinedCriu, at_once: int = 1) -> None:
        """Expect that `engine` will restore `at_once` sandboxes at the same time."""
        self._engine = engine
        self._target = max(self._target, min(at_once, _MAX_STANDBY))

    def take(self, engine: ConfinedCriu, busy: int) -> StandbyEngine:
        """Return the engine that has waited longest, or a new one. `busy` engines are restoring.

        Raises:
            OSError: A new engine does not start.
        """
        self.expect(engine, busy + 1)
        for standby in self._ready:
            if standby.engine == engine:
                self._ready.remove(standby)
                return standby
        return self._start(engine)

    @property
    def short(self) -> bool:
        """Whether fewer engines wait than should."""
        return len(self._ready) < self._target

    def start(self) -> None:
        """Start one more engine. If that fails, do not try again before the next `expect`."""
        assert self._engine is not None
        try:
            self._ready.append(self._start(self._engine))
        except OSError:
            self._target = 0

    def _start(self, engine: ConfinedCriu) -> StandbyEngine:
        self._count += 1
        directory = f"{self._space.root}/standby/{self._count}"
        return StandbyEngine(engine, self._space.root, directory)

    def on_reaped(self, pid: int) -> None:
        """Remove the engine `pid` if it died while it waited."""
        for standby in list(self._ready):
            if standby.pid == pid:
                self._ready.remove(standby)
                standby.close()
                shutil.rmtree(standby.directory, ignore_errors=True)
                self._target = 0
