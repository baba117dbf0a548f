"""The first process of a new sandbox, from its fork in the launcher to init."""

import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import Any, NoReturn

from benchflow_sandbox_local.launcher_process import syscalls, wire
from benchflow_sandbox_local.launcher_process.paths import make_directory, make_file, open_strict
from benchflow_sandbox_local.launcher_process.processes import die_with_pidfd

from . import mounts, namespaces, privileges

INIT = "/.bf/init"


@dataclass(frozen=True, slots=True)
class BootPlan:
    """The request for one sandbox."""

    merged: str
    hostname: str
    join: tuple[str, ...]
    """v1 `tasks` files that the first process enters."""
    door_ports: tuple[int, ...]
    """Ports of the loopback inside that the host serves."""
    mounts: list[dict[str, Any]]
    """Mounts of bundles: `source` and `target`."""
    binds: list[str]
    """Host directories to bind read-only at their own path."""
    directories: list[dict[str, Any]]
    """Directories to create if they are missing: `path`, `uid`, `gid`."""
    files: int
    """The soft limit of open files."""
    device_nodes: bool
    notes: dict[str, str]
    """Missing features of this machine, for the runner."""


def boot(plan: BootPlan, reply: socket.socket, launcher: int) -> NoReturn:
    """Set up the sandbox and execute init as PID 1. If a step fails, report it and exit."""
    step = "enter"
    try:
        tie_to(launcher)
        for path in plan.join:
            join(path)
        step = "network"
        namespaces.raise_loopback()
        listeners = [namespaces.listen(port) for port in plan.door_ports]
        step = "mounts"
        _build_root(plan)
        step = "privileges"
        _report(plan, reply, listeners)
        _close_streams()
        # Init closes every descriptor when it listens, so the end of `reply` means "ready".
        os.closerange(3, reply.fileno())
        os.closerange(reply.fileno() + 1, 4096)
        reply.set_inheritable(True)
        privileges.drop()
        limit_files(plan.files)
        step = "exec"
        os.execve(INIT, [INIT], {"PATH": "/usr/bin:/bin"})  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - reported, then the process ends
        failure = {"error": f"{step}: {error}", "errno": getattr(error, "errno", None)}
        wire.send(reply, failure)
    finally:
        os._exit(1)


def tie_to(launcher: int) -> None:
    """Let the kernel kill this process when the launcher ends, and reset its signals."""
    die_with_pidfd(launcher)
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def limit_files(soft: int) -> None:
    """Set the soft limit of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def join(path: str) -> None:
    """Enter a v1 group."""
    # Writing 0 to `tasks` moves this thread without a lock that blocks all forks.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"0")
    os.close(fd)


def _build_root(plan: BootPlan) -> None:
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = os.open(plan.merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _bind_directories(root, plan.binds)
    mounts.mount_devices(root, bind=not plan.device_nodes)
    mounts.mount_proc(root)
    sources = mounts.clone_sources(plan.mounts)
    os.fchdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".")
    os.chdir("/")
    syscalls.sethostname(plan.hostname)
    mounts.attach(root, sources)
    for item in plan.directories:
        _ensure(root, item)
    os.close(root)


def _bind_directories(root: int, binds: list[str]) -> None:
    attributes = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
    for path in binds:
        directory = os.path.isdir(path)  # noqa: PTH112 - of the host
        target = make_directory(root, path) if directory else make_file(root, path)
        syscalls.attach_mount(tree := syscalls.clone_mount(path, attributes), target)
        os.close(tree)
        os.close(target)


def _ensure(root: int, item: dict[str, Any]) -> None:
    try:
        os.stat(item["path"])  # noqa: PTH116 - in the new root
    except FileNotFoundError:
        target = make_directory(root, item["path"])
        os.close(target)
        os.chown(item["path"], item["uid"], item["gid"])


def _report(plan: BootPlan, reply: socket.socket, listeners: list[socket.socket]) -> None:
    """Send the descriptors of the sandbox to the runner: pidfd, root, network and listeners."""
    fds = [
        os.pidfd_open(os.getpid()),
        os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
        os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC),
    ]
    fds += [listener.fileno() for listener in listeners]
    wire.send(reply, {"ok": True, "notes": plan.notes}, tuple(fds))


def _close_streams() -> None:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    null = open_strict(root, "dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)
    os.close(root)
