"""Engines that have started and wait for a sandbox to restore.

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
from .log import complaint, note, open_errors, status_of
from .program import PLACE, ConfinedCriu, EngineError

_FIRST_KEPT = 64
"""The number of the first descriptor that it keeps; see csrc/engine/waiting.c."""
_AT_ONCE = 16
"""So many come in one message: as they come, they all have to find room below `_FIRST_KEPT`."""


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """A sandbox to restore."""

    request: dict[str, Any]
    root: str
    """The mount point of its root."""
    image: str
    work: str
    """The new name of the engine's directory."""
    pipes: list[int]
    """Descriptors of its new pipes."""


class StandbyEngine:
    """One engine, a child of this process. It touches nothing before `begin`.

    `room` is where the mounts of all sandboxes are: it holds none of them. `directory` is its own,
    to be made. When this process ends, so does the engine.
    """

    def __init__(self, engine: ConfinedCriu, room: str, directory: str) -> None:
        self.engine = engine
        self.directory = directory
        os.mkdir(directory, 0o700)  # noqa: PTH102 - a path of ours
        # It gets another name as soon as there is a sandbox, maybe before the engine has looked.
        tree = syscalls.clone_mount(directory, 0)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = open_errors(directory)
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with(launcher)
                engine.wait(room, tree, theirs.fileno(), errors)
            except BaseException as error:  # noqa: BLE001 - read by `complaint`
                note(errors, error)
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
        """Order the engine to restore a sandbox; send the outside ends of its network to `reply`.

        Raises:
            OSError: The engine is dead, or what it needs is not there. It ends.
        """
        live_images.refuse_torn(job.image, job.request["image_bytes"])
        listeners = list[socket.socket]()
        try:
            for port in job.request["door_ports"]:
                listeners.append(namespaces.listen_in(self._network, port))
            os.rename(self.directory, job.work)  # noqa: PTH104 - paths of ours
            self.directory = job.work
            file_numbers.hand_over(job.image, job.work, self.engine.preload)
            attributes.hand_over(job.image, job.work)
            self._join(job.request)
            self._show(job.root, "root", 0)
            self._show(job.image, "image", syscalls.MOUNT_ATTR_RDONLY)
            for number, item in enumerate(job.request["mounts"]):
                self._show(item["source"], f"bf{number}", syscalls.MOUNT_ATTR_RDONLY)
            kept = [self._network, *job.pipes]
            for start in range(0, len(kept), _AT_ONCE):
                self._order("k", kept[start : start + _AT_ONCE])
            if table := socket_owners.table_of(job.image):
                self._file("c", table)
            self._file("o", _options(job.request).encode())
            ends = tuple(listener.fileno() for listener in listeners)
        except ConnectionError as error:
            # It takes no orders any more, so it ends, and the launcher collects it after this.
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            why = complaint(self.directory, status_of(ended))
            raise EngineError(5, f"{why} (before it had its orders)") from error
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

    def _show(self, source: str, name: str, attributes: int) -> None:
        """Show the file or directory `source` to the engine."""
        tree = syscalls.clone_mount(source, attributes)
        try:
            if stat.S_ISDIR(os.fstat(tree).st_mode):
                os.mkdir(f"{self.directory}/{name}")  # noqa: PTH102
            else:
                os.mknod(f"{self.directory}/{name}")
            self._order(f"m{PLACE}/{name}", [tree])
        finally:
            os.close(tree)

    def _file(self, letter: str, content: bytes) -> None:
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
    shown = [f"bf{number}" for number in range(len(request["mounts"]))]
    lines += [f"external mnt[{name}]:{PLACE}/{name}" for name in shown]
    keys = ["extnet", *(f"pipe:[{inode}]" for inode in request["pipes"])]
    lines += [f"inherit-fd fd[{fd}]:{key}" for fd, key in enumerate(keys, _FIRST_KEPT)]
    return "".join(f"{line}\n" for line in lines)


_MOST_WAITING = 2 * (os.cpu_count() or 1)


class StandbyPool:
    """StandbyEngine engines of one launcher."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._engine: ConfinedCriu | None = None
        self._ready: list[StandbyEngine] = []
        self._wanted = 0
        self._started = 0

    def expect(self, engine: ConfinedCriu, at_once: int = 1) -> None:
        """Note that `engine` will restore `at_once` sandboxes at the same time."""
        self._engine = engine
        self._wanted = max(self._wanted, min(at_once, _MOST_WAITING))

    def take(self, engine: ConfinedCriu, busy: int) -> StandbyEngine:
        """Return the engine that has waited longest, or a new one; `busy` are at work.

        Raises:
            OSError: None starts.
        """
        self.expect(engine, busy + 1)
        for waiting in self._ready:
            if waiting.engine == engine:
                self._ready.remove(waiting)
                return waiting
        return self._start(engine)

    @property
    def short(self) -> bool:
        """Whether one more engine should wait."""
        return len(self._ready) < self._wanted

    def start(self) -> None:
        """Start one more; no try is made after one that failed until one is taken."""
        assert self._engine is not None
        try:
            self._ready.append(self._start(self._engine))
        except OSError:
            self._wanted = 0

    def _start(self, engine: ConfinedCriu) -> StandbyEngine:
        self._started += 1
        directory = f"{self._space.root}/standby/{self._started}"
        return StandbyEngine(engine, self._space.root, directory)

    def reaped(self, pid: int) -> None:
        """Remove the engine `pid` if it has died while it waited."""
        for waiting in list(self._ready):
            if waiting.pid == pid:
                self._ready.remove(waiting)
                waiting.close()
                shutil.rmtree(waiting.directory, ignore_errors=True)
                self._wanted = 0
