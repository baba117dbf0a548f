"""The launcher: a small process that forks sandboxes and ends with its runner."""

import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from benchflow_sandbox_local.launcher_process.criu.log import complaint
from benchflow_sandbox_local.launcher_process.criu.pager import PagerProcess
from benchflow_sandbox_local.launcher_process.criu.program import ConfinedCriu, end_engine
from benchflow_sandbox_local.launcher_process.criu.standby import RestoreOrder, StandbyPool
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace
from benchflow_sandbox_local.launcher_process.start.boot import BootPlan, boot, limit_files

from . import syscalls, wire
from .criu import attributes, file_numbers, log, program
from .file_jobs import FileJobs
from .layers import skeleton
from .processes import die_with, end_children, hold_lock, inherit
from .start import gvisor, namespaces

_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWNET
)

_FILES = 1 << 16
"""Files that the launcher and its engines may have open."""


@dataclass(slots=True)
class _Live:
    pid: int
    pool: str
    groups: tuple[str, ...]
    """Directories of its control groups."""
    drop_pool: bool = False
    waiting: socket.socket | None = None
    """Where to report that the sandbox has ended."""
    layer: str | None = None
    """The layer that its upper directory becomes, instead of being removed."""
    engine: int = 0
    """The process that restores it, while that runs."""
    reviving: socket.socket | None = None
    """Where to report that it is restored."""
    pager: PagerProcess | None = None
    """The process that fills its memory, until all memory is there."""


class LauncherServer:
    """Serves requests until the runner's end of the control socket closes.

    Each request brings a reply socket of its own. Quick ones are served in line;
    a forked child serves those that copy or delete files.
    """

    def __init__(
        self, control: socket.socket, runner: int, workspace: Workspace, files: int
    ) -> None:
        self._control = control
        self._files = files
        self._runner = runner
        self._space = workspace
        self._boxes: dict[str, _Live] = {}
        self._standby = StandbyPool(workspace)
        self._ended: set[int] = set()
        """Process ids collected during a restore. One may be the id of a new first process."""
        self._self = os.pidfd_open(os.getpid())

    def run(self) -> None:
        """Serve until the runner is gone; then end its sandboxes.

        The sandboxes die with this process, too, whatever ends it.
        """
        try:
            self._serve_all()
        finally:
            lives = self._boxes.values()
            pagers = frozenset(live.pager.group for live in lives if live.pager is not None)
            for live in lives:
                self._let_go(live)
            end_children(tuple(group for live in lives for group in live.groups), pagers)

    def _serve_all(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        # A process that the runner has forked may hold its end of the socket open.
        poller.register(self._runner, select.POLLIN)
        while True:
            # Starting an engine takes time, so none is started during a restore.
            idle = self._standby.short and not self._busy
            events = poller.poll(0 if idle else None)
            if idle and not events:
                self._standby.start()
            for fd, _ in events:
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                elif fd == self._runner or not self._serve():
                    return

    def _serve(self) -> bool:
        try:
            received = wire.receive(self._control)
        except ConnectionError:
            return False
        except wire.NoRoomError as error:
            # The reply socket is the first descriptor, so it is the last one to be lost.
            with suppress(IndexError), socket.socket(fileno=error.fds.pop(0)) as reply:
                _fail(reply, error)
            wire.close(error.fds)
            return True
        if received is None:
            return False
        request, fds = received
        reply = socket.socket(fileno=fds[0])
        try:
            fds += wire.receive_more(reply, request["more_fds"])
            self._dispatch(request, reply, fds[1:])
        except Exception as error:  # noqa: BLE001 - one bad request must not end the others
            _fail(reply, error)
        finally:
            for fd in fds[1:]:
                os.close(fd)
            reply.close()
        return True

    def _dispatch(self, request: dict[str, Any], reply: socket.socket, fds: list[int]) -> None:
        operation = request["op"]
        if operation == "start":
            self._start(request, lambda plan: boot(plan, reply, self._self))
        elif operation == "start_gvisor":
            guest = self._guest(request)
            self._start(request, lambda plan: gvisor.boot(plan, guest, reply, self._self))
        elif operation == "restore":
            self._restore(request, reply, fds)
        elif operation in {"stop", "retire"}:
            self._stop(request, reply)
        elif operation == "socket":
            self._socket(fds[0], reply)
        elif operation == "open":
            _open_all(request["directories"], self._space.opaque, reply)
        elif operation == "drop_pool":
            self._space.drop_pool(request["pool"])
            wire.send(reply, {"ok": True})
        else:
            if operation in {"seal", "load", "dump"}:
                self._space.pool(request["pool"], request["size"])
            if operation == "dump":
                self._standby.expect(ConfinedCriu.of(request, self._space.cache))
            self._in_child(request, reply)

    def _guest(self, request: dict[str, Any]) -> gvisor.GvisorPlan:
        image = request["image"]
        return gvisor.GvisorPlan(
            request["program"],
            self._space.work(request["box"]),
            self._space.tray(request["box"]),
            None if image is None else self._space.image(image),
        )

    def _start(self, request: dict[str, Any], enter: Callable[[BootPlan], NoReturn]) -> None:
        pool, box = request["pool"], request["box"]
        self._space.pool(pool, request["size"])
        merged = self._space.mount_root(pool, box, request["lowers"])
        plan = BootPlan(
            merged=merged,
            hostname=skeleton.HOSTNAME,
            join=tuple(request["join"]),
            door_ports=tuple(request["door_ports"]),
            mounts=request["mounts"],
            binds=request["binds"],
            files=self._files,
            directories=request["directories"],
            device_nodes=self._space.rooted,
            notes=self._space.notes,
        )
        group = request["group"]
        group_fd = None if group is None else os.open(group, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = syscalls.clone(_NAMESPACES, group_fd)
        except OSError:
            self._space.unmount_root(pool, box)
            raise
        if pid == 0:
            enter(plan)
        if group_fd is not None:
            os.close(group_fd)
        self._boxes[box] = _Live(pid, pool, _groups(request))

    def _socket(self, netns: int, reply: socket.socket) -> None:
        # Without root a process cannot return to the host's namespace: a child enters instead.
        if not self._space.rooted and os.fork():
            return
        try:
            with namespaces.socket_in(netns, come_back=self._space.rooted) as made:
                wire.send(reply, {"ok": True}, (made.fileno(),))
        finally:
            if not self._space.rooted:
                os._exit(0)

    def _stop(self, request: dict[str, Any], reply: socket.socket) -> None:
        live = self._boxes.get(request["box"])
        if live is None:
            wire.send(reply, {"ok": True})
            return
        live.drop_pool = request.get("drop_pool", False)
        live.layer = request.get("layer")
        live.waiting = reply.dup()
        if live.engine:
            end_engine(live.engine)
        if live.pid:
            os.kill(live.pid, signal.SIGKILL)
        if not live.engine and not live.pid:
            self._finish(request["box"], live)

    def _restore(self, request: dict[str, Any], reply: socket.socket, fds: list[int]) -> None:
        pool, box = request["pool"], request["box"]
        self._space.pool(pool, request["size"])
        merged = self._space.mount_root(pool, box, request["lowers"])
        try:
            waiting = self._standby.take(ConfinedCriu.of(request, self._space.cache), self._busy)
        except OSError:
            self._space.unmount_root(pool, box)
            raise
        live = self._boxes[box] = _Live(
            0, pool, _groups(request), engine=waiting.pid, reviving=reply.dup()
        )
        image, work = self._space.image(request["image"]), self._space.work(box)
        if request["pager"] is not None:
            try:
                # The engine calls it from its directory, whatever that is called by then.
                live.pager = PagerProcess.start(
                    request["pager"], image, waiting.directory, fds.pop()
                )
            except OSError:
                waiting.close()
                raise
        waiting.begin(RestoreOrder(request, merged, image, work, fds), reply)

    @property
    def _busy(self) -> int:
        """The number of sandboxes that are being restored."""
        return sum(live.reviving is not None for live in self._boxes.values())

    def _revived(self, box: str, live: _Live, status: int) -> None:
        """Take over the sandbox that the engine has restored, or report why it failed."""
        reply, work = live.reviving, self._space.work(box)
        live.engine, live.reviving = 0, None
        assert reply is not None
        with reply:
            try:
                unpaged = "" if live.pager is None else live.pager.failure
                if status != 0:
                    raise program.EngineError(5, unpaged or complaint(work, status))
                if (made := program.made(work)) in self._ended:
                    # By now another process may have the number.
                    raise program.EngineError(3, "its first process has ended at once")
                live.pid = made
                if unpaged:
                    os.kill(made, signal.SIGKILL)
                    raise program.EngineError(5, unpaged)
                file_numbers.require_exchanged(work)
                log.refuse_unknown(work)
                attributes.require_set(work)
                _lead_into(made, reply)
            except (OSError, ValueError) as error:
                _fail(reply, error)
        if live.waiting is not None:
            if live.pid:
                os.kill(live.pid, signal.SIGKILL)
            else:
                self._finish(box, live)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if ended.si_status and any(pid == live.engine for live in self._boxes.values()):
                end_engine(pid)  # until it is collected, nobody else has its number
            _, status = os.waitpid(pid, 0)
            self._standby.reaped(pid)
            self._ended.add(pid)
            for box, live in list(self._boxes.items()):
                self._reaped(box, live, pid, status)
            if not self._busy:
                self._ended.clear()

    def _reaped(self, box: str, live: _Live, pid: int, status: int) -> None:
        if pid == live.engine:
            self._revived(box, live, status)
        elif live.pager is not None and pid == live.pager.pid:
            self._paged(live, live.pager, status)
        elif pid == live.pid:
            live.pid = 0
            self._let_go(live)
            if live.waiting is not None and not live.engine:
                self._finish(box, live)

    def _paged(self, live: _Live, pager: PagerProcess, status: int) -> None:
        """Record that a pager has ended; kill a sandbox that lacks memory."""
        pager.ended(status)
        if not pager.failure:
            self._let_go(live)
            return
        if live.engine:
            end_engine(live.engine)
        if live.pid:
            os.kill(live.pid, signal.SIGKILL)

    def _let_go(self, live: _Live) -> None:
        if live.pager is not None:
            live.pager.let_go()
            live.pager = None

    def _finish(self, box: str, live: _Live) -> None:
        """Remove the files of a dead sandbox and report to the runner."""
        del self._boxes[box]
        self._let_go(live)
        assert live.waiting is not None
        with live.waiting as reply:
            try:
                self._space.unmount_root(live.pool, box)
                if live.layer is not None:
                    self._space.retire_upper(live.pool, box, live.layer)
                if live.drop_pool:
                    self._space.drop_pool(live.pool)
                    wire.send(reply, {"ok": True})
                else:
                    self._in_child({"op": "remove_box", "pool": live.pool, "box": box}, reply)
            except OSError as error:
                _fail(reply, error)

    def _in_child(self, request: dict[str, Any], reply: socket.socket) -> None:
        work = FileJobs(self._space).named(request["op"])
        launcher = os.getpid()
        if os.fork():
            return
        try:
            # Long work must not outlive the launcher.
            die_with(launcher)
            self._control.close()
            work(request, reply)
        except BaseException as error:  # noqa: BLE001 - reported, then the process ends
            _fail(reply, error)
        finally:
            os._exit(0)


def _groups(request: dict[str, Any]) -> tuple[str, ...]:
    """Return the directories of the groups that a sandbox is started in."""
    first = [os.path.dirname(tasks) for tasks in request["join"]]  # noqa: PTH120
    return (*first, *([request["group"]] if request["group"] else []))


def _lead_into(pid: int, reply: socket.socket) -> None:
    """Send the descriptors that lead into a sandbox; keep none."""
    fds = [os.pidfd_open(pid)]
    try:
        fds.append(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY))
        wire.send(reply, {"ok": True, "notes": {}}, tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)


def _open_all(directories: list[str], opaque: str, reply: socket.socket) -> None:
    """Send descriptors of directories that only this mount namespace sees."""
    fds: list[int] = []
    try:
        fds += (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in directories)
        wire.send(reply, {"ok": True, "opaque": opaque}, tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: without a handler the wake-up descriptor is not written."""


def _fail(reply: socket.socket, error: BaseException) -> None:
    message = {"error": str(error) or repr(error), "errno": getattr(error, "errno", None)}
    try:
        wire.send(reply, message)
    except OSError:
        return  # the runner no longer waits for this answer


def main() -> None:
    """Run a launcher: `argv[1]` is JSON.

    It has `control` (a descriptor), `lock` and `root` (paths), `userns`, `budget` (bytes of live
    images), `disk` (a directory of the host for them, or null) and `files` (the soft limit of
    open files in a sandbox).
    """
    options = json.loads(sys.argv[1])
    control = socket.socket(fileno=options["control"])
    control.set_inheritable(False)
    runner = os.pidfd_open(os.getppid())
    hold_lock(options["lock"])
    inherit()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    # An engine that cannot raise it makes a table of this size for each process of a sandbox.
    limit_files(min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    rooted = not options["userns"]
    try:
        if rooted:
            syscalls.unshare(syscalls.CLONE_NEWNS)
        else:
            namespaces.enter_user_namespace()
        space = Workspace(options["root"], rooted)
        space.prepare(options["budget"], options["disk"])
    except OSError as error:
        _fail(control, error)
        _remove(options["lock"])
        return
    wire.send(control, {"ok": True})
    try:
        LauncherServer(control, runner, space, options["files"]).run()
    finally:
        space.close()
        _remove(options["lock"])


def _remove(lock: str) -> None:
    with suppress(OSError):  # the store may be gone
        os.unlink(lock)  # noqa: PTH108
