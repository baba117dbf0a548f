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

from benchflow_sandbox_local.launcher_process.criu.log import failure_reason
from benchflow_sandbox_local.launcher_process.criu.pager import PagerProcess
from benchflow_sandbox_local.launcher_process.criu.program import ConfinedCriu, end_engine
from benchflow_sandbox_local.launcher_process.criu.standby import RestoreOrder, StandbyPool
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace
from benchflow_sandbox_local.launcher_process.start.boot import BootPlan, boot, limit_files

from . import syscalls, wire
from .criu import attributes, file_numbers, log, program
from .file_jobs import FileJobs
from .layers import skeleton
from .processes import adopt_orphans, die_with, end_children, hold_lock
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
class _BoxProcess:
    """The processes of one sandbox."""

    pid: int
    """The first process; 0 before it is restored and after its end."""
    pool: str
    groups: tuple[str, ...]
    """Directories of the control groups."""
    drop_pool: bool = False
    end_reply: socket.socket | None = None
    """The socket to report the end of the sandbox."""
    layer: str | None = None
    """The layer that the upper directory becomes at the end; None to remove it."""
    engine: int = 0
    """The engine that restores the sandbox; 0 when none runs."""
    restore_reply: socket.socket | None = None
    """The socket to report the end of the restore."""
    pager: PagerProcess | None = None
    """The process that loads the memory of the sandbox, until all memory is loaded."""


class LauncherServer:
    """Serves requests until the runner closes its end of the control socket.

    Each request has a reply socket of its own. A forked child serves the requests that copy or
    delete files; this process serves the others.
    """

    def __init__(
        self, control: socket.socket, runner: int, workspace: Workspace, files: int
    ) -> None:
        self._control = control
        self._files = files
        self._runner = runner
        self._space = workspace
        self._boxes: dict[str, _BoxProcess] = {}
        self._standby = StandbyPool(workspace)
        self._reaped_pids: set[int] = set()
        """Process ids that ended during a restore. A restored first process may be one of them."""
        self._pidfd = os.pidfd_open(os.getpid())

    def run(self) -> None:
        """Serve until the runner is gone; then end its sandboxes.

        The kernel also ends the sandboxes when this process is killed.
        """
        try:
            self._serve_all()
        finally:
            boxes = self._boxes.values()
            pagers = frozenset(box.pager.group for box in boxes if box.pager is not None)
            for box in boxes:
                self._release_pager(box)
            end_children(tuple(group for box in boxes for group in box.groups), pagers)

    def _serve_all(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        # A child of the runner may have its end of the socket open after the runner has died.
        poller.register(self._runner, select.POLLIN)
        while True:
            # Starting an engine takes time, so this waits while sandboxes are restored.
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
            # The reply socket is the first descriptor, so it arrives if any does.
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
        except Exception as error:  # noqa: BLE001 - a failed request must not end the launcher
            _fail(reply, error)
        finally:
            for fd in fds[1:]:
                os.close(fd)
            reply.close()
        return True

    def _dispatch(self, request: dict[str, Any], reply: socket.socket, fds: list[int]) -> None:
        operation = request["op"]
        if operation == "start":
            self._start(request, lambda plan: boot(plan, reply, self._pidfd))
        elif operation == "start_gvisor":
            guest = self._gvisor_plan(request)
            self._start(request, lambda plan: gvisor.boot(plan, guest, reply, self._pidfd))
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

    def _gvisor_plan(self, request: dict[str, Any]) -> gvisor.GvisorPlan:
        image = request["image"]
        return gvisor.GvisorPlan(
            request["program"],
            self._space.work(request["box"]),
            self._space.image_staging(request["box"]),
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
        self._boxes[box] = _BoxProcess(pid, pool, _groups(request))

    def _socket(self, netns: int, reply: socket.socket) -> None:
        # Without root a process cannot return to its own namespace, so a child enters `netns`.
        if not self._space.rooted and os.fork():
            return
        try:
            with namespaces.socket_in(netns, return_after=self._space.rooted) as sock:
                wire.send(reply, {"ok": True}, (sock.fileno(),))
        finally:
            if not self._space.rooted:
                os._exit(0)

    def _stop(self, request: dict[str, Any], reply: socket.socket) -> None:
        box = self._boxes.get(request["box"])
        if box is None:
            wire.send(reply, {"ok": True})
            return
        box.drop_pool = request.get("drop_pool", False)
        box.layer = request.get("layer")
        box.end_reply = reply.dup()
        if box.engine:
            end_engine(box.engine)
        if box.pid:
            os.kill(box.pid, signal.SIGKILL)
        if not box.engine and not box.pid:
            self._finish(request["box"], box)

    def _restore(self, request: dict[str, Any], reply: socket.socket, fds: list[int]) -> None:
        pool, name = request["pool"], request["box"]
        self._space.pool(pool, request["size"])
        merged = self._space.mount_root(pool, name, request["lowers"])
        try:
            standby = self._standby.take(ConfinedCriu.of(request, self._space.cache), self._busy)
        except OSError:
            self._space.unmount_root(pool, name)
            raise
        box = self._boxes[name] = _BoxProcess(
            0, pool, _groups(request), engine=standby.pid, restore_reply=reply.dup()
        )
        image, work = self._space.image(request["image"]), self._space.work(name)
        if request["pager"] is not None:
            try:
                # The engine connects to the pager in its working directory, after its renaming.
                box.pager = PagerProcess.start(
                    request["pager"], image, standby.directory, fds.pop()
                )
            except OSError:
                standby.close()
                raise
        standby.begin(RestoreOrder(request, merged, image, work, fds), reply)

    @property
    def _busy(self) -> int:
        """The number of sandboxes that are being restored."""
        return sum(box.restore_reply is not None for box in self._boxes.values())

    def _engine_ended(self, name: str, box: _BoxProcess, status: int) -> None:
        """Report the restored sandbox, or the reason why the restore failed."""
        reply, work = box.restore_reply, self._space.work(name)
        box.engine, box.restore_reply = 0, None
        assert reply is not None
        with reply:
            try:
                failure = "" if box.pager is None else box.pager.failure
                if status != 0:
                    raise program.EngineError(5, failure or failure_reason(work, status))
                if (pid := program.restored_pid(work)) in self._reaped_pids:
                    # Another process may have this number now.
                    raise program.EngineError(3, "its first process has ended at once")
                box.pid = pid
                if failure:
                    os.kill(pid, signal.SIGKILL)
                    raise program.EngineError(5, failure)
                file_numbers.require_exchanged(work)
                log.refuse_unknown(work)
                attributes.require_set(work)
                _send_descriptors(pid, reply)
            except (OSError, ValueError) as error:
                _fail(reply, error)
        if box.end_reply is not None:
            if box.pid:
                os.kill(box.pid, signal.SIGKILL)
            else:
                self._finish(name, box)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if ended.si_status and any(pid == box.engine for box in self._boxes.values()):
                end_engine(pid)  # before the process is reaped, so its number is not reused
            _, status = os.waitpid(pid, 0)
            self._standby.on_reaped(pid)
            self._reaped_pids.add(pid)
            for name, box in list(self._boxes.items()):
                self._on_reaped(name, box, pid, status)
            if not self._busy:
                self._reaped_pids.clear()

    def _on_reaped(self, name: str, box: _BoxProcess, pid: int, status: int) -> None:
        if pid == box.engine:
            self._engine_ended(name, box, status)
        elif box.pager is not None and pid == box.pager.pid:
            self._pager_ended(box, box.pager, status)
        elif pid == box.pid:
            box.pid = 0
            self._release_pager(box)
            if box.end_reply is not None and not box.engine:
                self._finish(name, box)

    def _pager_ended(self, box: _BoxProcess, pager: PagerProcess, status: int) -> None:
        """Record the end of a pager; if the pager failed, kill its sandbox."""
        pager.record_end(status)
        if not pager.failure:
            self._release_pager(box)
            return
        if box.engine:
            end_engine(box.engine)
        if box.pid:
            os.kill(box.pid, signal.SIGKILL)

    def _release_pager(self, box: _BoxProcess) -> None:
        if box.pager is not None:
            box.pager.release()
            box.pager = None

    def _finish(self, name: str, box: _BoxProcess) -> None:
        """Remove the files of a dead sandbox and report to the runner."""
        del self._boxes[name]
        self._release_pager(box)
        assert box.end_reply is not None
        with box.end_reply as reply:
            try:
                self._space.unmount_root(box.pool, name)
                if box.layer is not None:
                    self._space.retire_upper(box.pool, name, box.layer)
                if box.drop_pool:
                    self._space.drop_pool(box.pool)
                    wire.send(reply, {"ok": True})
                else:
                    self._in_child({"op": "remove_box", "pool": box.pool, "box": name}, reply)
            except OSError as error:
                _fail(reply, error)

    def _in_child(self, request: dict[str, Any], reply: socket.socket) -> None:
        work = FileJobs(self._space).find(request["op"])
        launcher = os.getpid()
        if os.fork():
            return
        try:
            # A long copy must not continue after the launcher has ended.
            die_with(launcher)
            self._control.close()
            work(request, reply)
        except BaseException as error:  # noqa: BLE001 - reported, then the process ends
            _fail(reply, error)
        finally:
            os._exit(0)


def _groups(request: dict[str, Any]) -> tuple[str, ...]:
    """Return the directories of the groups in which a sandbox is started."""
    first = [os.path.dirname(tasks) for tasks in request["join"]]  # noqa: PTH120
    return (*first, *([request["group"]] if request["group"] else []))


def _send_descriptors(pid: int, reply: socket.socket) -> None:
    """Send descriptors of a sandbox's first process and root, and close them here."""
    fds = [os.pidfd_open(pid)]
    try:
        fds.append(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY))
        wire.send(reply, {"ok": True, "notes": {}}, tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)


def _open_all(directories: list[str], opaque: str, reply: socket.socket) -> None:
    """Send descriptors of directories that exist only in this mount namespace."""
    fds: list[int] = []
    try:
        fds += (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in directories)
        wire.send(reply, {"ok": True, "opaque": opaque}, tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: Python writes to the wake-up descriptor only if there is a handler."""


def _fail(reply: socket.socket, error: BaseException) -> None:
    message = {"error": str(error) or repr(error), "errno": getattr(error, "errno", None)}
    try:
        wire.send(reply, message)
    except OSError:
        return  # the runner does not wait for this answer


def main() -> None:
    """Run a launcher. `argv[1]` is a JSON object of options.

    The options are `control` (a descriptor), `lock` and `root` (paths), `userns` (a boolean),
    `budget` (bytes of live images), `disk` (a directory of the host for live images, or null) and
    `files` (the soft limit of open files in a sandbox).
    """
    options = json.loads(sys.argv[1])
    control = socket.socket(fileno=options["control"])
    control.set_inheritable(False)
    runner = os.pidfd_open(os.getppid())
    hold_lock(options["lock"])
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    # CRIU without CAP_SYS_RESOURCE creates a table of this size for each process of a sandbox.
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
    try:
        with suppress(BrokenPipeError):  # a runner that is gone: the server ends at once
            wire.send(control, {"ok": True})
        LauncherServer(control, runner, space, options["files"]).run()
    finally:
        space.close()
        _remove(options["lock"])


def _remove(lock: str) -> None:
    with suppress(OSError):  # the store may be deleted
        os.unlink(lock)  # noqa: PTH108
