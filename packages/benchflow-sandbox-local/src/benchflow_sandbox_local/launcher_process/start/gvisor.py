# Raw names below roots of sandboxes: pathlib would add nothing here.
# ruff: noqa: PTH102, PTH103, PTH123
"""The first process of a gVisor sandbox on the host: it runs `runsc` and serves requests.

The sandbox may take control of `runsc`. So `runsc` runs in a mount namespace that contains little
more than the root of the sandbox.
"""

import json
import os
import re
import resource
import select
import shutil
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from benchflow_sandbox_local.launcher_process import syscalls, wire
from benchflow_sandbox_local.launcher_process.criu.log import how_ended
from benchflow_sandbox_local.launcher_process.paths import make_directory, make_file, open_strict

from .boot import INIT, BootPlan, join, tie_to
from .privileges import CAPABILITIES

STREAMS = "streams.img"
"""The file of an image with the names of the sandbox's pipes."""
_IO = ".bf/io"
_NAME = re.compile(r"\d{1,9}\.[012]")
_MARK = ".bf-tmp"
_MAX_TEXT = 2000
_COMMON = (
    "--root=/run/bf",
    "--network=none",
    "--ignore-cgroups",
    "--host-fifo=open",
    "--directfs=false",  # with directfs, a process that waits for a pipe cannot be paused
    "--file-access=shared",  # the host reads and writes the same files
    "--file-access-mounts=shared",
    "--overlay2=none",
    "--dcache=0",  # a cached name of a pipe would keep its reading end open
)
_BOX_LOG, _COMMAND_LOG = "/run/box.log", "/run/command.log"
_ENVIRONMENT = {"PATH": "/bin"}


class GvisorError(OSError):
    """`runsc` failed. The message contains its output."""


@dataclass(frozen=True, slots=True)
class GvisorPlan:
    """The parts of a request that only a gVisor sandbox has."""

    program: str
    """The path of `runsc` on the host."""
    work: str
    """A private directory of this sandbox."""
    image_staging: str
    """The directory in which the sandbox writes its images."""
    image: str | None
    """A live image to restore."""


def boot(plan: BootPlan, guest: GvisorPlan, reply: socket.socket, launcher: int) -> NoReturn:
    """Supervise the sandbox: run `runsc`, and serve `reply` until it closes."""
    step = "enter"
    try:
        tie_to(launcher)
        os.closerange(3, reply.fileno())
        os.closerange(reply.fileno() + 1, 4096)
        for path in plan.join:
            join(path)
        step = "mounts"
        root = _build(plan, guest)
        step = "root"
        _prepare(root, plan, guest)
        pipes = open_strict(root, _IO, os.O_RDONLY | os.O_DIRECTORY)
        own = os.pidfd_open(os.getpid())
        wire.send(reply, {"ok": True, "notes": plan.notes}, (own, root, pipes))
        step = "serve"
        _Supervisor(plan, guest, reply, root).serve()
    except BaseException as error:  # noqa: BLE001 - reported, then the process ends
        _fail(reply, OSError(getattr(error, "errno", None), f"{step}: {error}"))
    finally:
        os._exit(1)


def _build(plan: BootPlan, guest: GvisorPlan) -> int:
    """Enter a root with the few files that `runsc` needs; return the sandbox's own root."""
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    trees = [
        (syscalls.clone_mount(plan.merged, 0), "/root"),
        (syscalls.clone_mount(guest.program, 0), "/bin/runsc"),
        (syscalls.clone_mount(guest.image_staging, 0), "/image"),
        (syscalls.clone_mount("/dev/null", 0), "/dev/null"),
    ]
    protected = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    if guest.image is not None:
        trees.append((syscalls.clone_mount(guest.image, protected), "/from"))
    for number, source in enumerate(_sources(plan)):
        trees.append((syscalls.clone_mount(source, protected), f"/binds/{number}"))
    os.makedirs(new_root := f"{guest.work}/root", exist_ok=True)
    syscalls.mount("benchflow", new_root, "tmpfs", syscalls.MS_NOSUID, "size=16m,mode=0755")
    top = os.open(new_root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in ("bin", "dev", "image", "proc", "root", "run", "tmp"):
        os.close(make_directory(top, name))
    for tree, path in trees:
        directory = os.path.isdir(f"/proc/self/fd/{tree}")  # noqa: PTH112
        target = make_directory(top, path) if directory else make_file(top, path)
        syscalls.attach_mount(tree, target)
        os.close(target)
        os.close(tree)
    os.fchdir(top)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".")
    os.chdir("/")
    os.close(top)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID)
    return os.open("/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _sources(plan: BootPlan) -> list[str]:
    return [*plan.binds, *(item["source"] for item in plan.mounts)]


def _targets(plan: BootPlan) -> list[str]:
    return [*plan.binds, *(item["target"] for item in plan.mounts)]


def _prepare(root: int, plan: BootPlan, guest: GvisorPlan) -> None:
    for item in plan.directories:
        _ensure(root, item)
    for number, target in enumerate(_targets(plan)):
        directory = os.path.isdir(f"/binds/{number}")  # noqa: PTH112
        os.close(make_directory(root, target) if directory else make_file(root, target))
    pipes = make_directory(root, _IO, 0o700)
    names = ["0.0", "0.1", "0.2"] if guest.image is None else _names("/from")
    for name in names:
        os.mkfifo(name, 0o600, dir_fd=pipes)
    os.close(pipes)
    # gVisor mounts its own file system on an empty /tmp, which the host could not see.
    os.close(make_file(root, f"/tmp/{_MARK}"))  # noqa: S108 - inside the sandbox


def _ensure(root: int, item: dict[str, Any]) -> None:
    try:
        os.close(open_strict(root, item["path"], os.O_PATH))
    except FileNotFoundError:
        directory = make_directory(root, item["path"])
        os.chown(f"/proc/self/fd/{directory}", item["uid"], item["gid"])
        os.close(directory)


def _names(image: str) -> list[str]:
    with open(f"{image}/{STREAMS}", encoding="utf-8") as file:
        names = json.load(file)
    if not all(_NAME.fullmatch(name) for name in names):
        raise GvisorError(22, "the image is not an image of a gVisor sandbox")
    return [str(name) for name in names]


class _Supervisor:
    """Runs `runsc` on request. The sandbox ends with this process."""

    def __init__(self, plan: BootPlan, guest: GvisorPlan, reply: socket.socket, root: int) -> None:
        self._plan = plan
        self._guest = guest
        self._reply = reply
        self._root = root
        self._runsc = 0
        """The process of `runsc run` or `runsc restore`."""
        self._reaped = 0
        """The same process after its end."""
        self._status = 0
        self._poll = select.poll()
        self._poll.register(reply, select.POLLIN)

    def serve(self) -> None:
        """Serve until the runner hangs up or the sandbox ends."""
        while True:
            for fd, _ in self._poll.poll():
                received = wire.receive(self._reply) if fd == self._reply.fileno() else None
                if received is None:
                    # Report the reason to a runner that still waits.
                    _fail(self._reply, self._end())
                    return
                self._answer(received[0]["do"])

    def _answer(self, order: str) -> None:
        try:
            needs_answer = self._obey(order)
        except (OSError, ValueError) as error:
            _fail(self._reply, error)
            if order == "resume":
                raise
        else:
            if needs_answer:
                wire.send(self._reply, {"ok": True})

    def _obey(self, order: str) -> bool:
        """Run one order; return whether the runner waits for an answer."""
        if order == "run":
            self._start()
        elif order == "ready":
            place = open_strict(self._root, "tmp")
            os.unlink(_MARK, dir_fd=place)
            os.close(place)
        elif order == "checkpoint":
            self._checkpoint()
        else:
            self._run(order, "box")
        return order in {"pause", "checkpoint"}

    def _start(self) -> None:
        os.mkdir("/run/bundle")
        with open("/run/bundle/config.json", "w", encoding="utf-8") as file:
            json.dump(_bundle(self._plan), file)
        verb = ("run",) if self._guest.image is None else ("restore", "--image-path=/from")
        self._runsc = _spawn((*verb, "--bundle=/run/bundle", "box"), _BOX_LOG)
        self._poll.register(os.pidfd_open(self._runsc), select.POLLIN)

    def _checkpoint(self) -> None:
        # The last image may still be there, and `runsc` does not overwrite it.
        shutil.rmtree("/image/new", ignore_errors=True)
        options = ("--image-path=/image/new", "--compression=none", "--leave-running")
        self._run("checkpoint", *options, "box")
        pipes = open_strict(self._root, _IO, os.O_RDONLY | os.O_DIRECTORY)
        names = sorted(name for name in os.listdir(pipes) if _NAME.fullmatch(name))  # noqa: PTH208
        os.close(pipes)
        with open(f"/image/new/{STREAMS}", "w", encoding="utf-8") as file:
            json.dump(names, file)

    def _end(self) -> GvisorError:
        """Return why the sandbox has ended, or that the runner hung up."""
        if self._runsc and not self._reaped:
            self._reaped, self._status = os.waitpid(self._runsc, os.WNOHANG)
        if self._reaped:
            return _end_error("the sandbox", self._status, _BOX_LOG)
        return GvisorError(5, "the runner hung up")

    def _run(self, *arguments: str) -> None:
        child = _spawn(arguments, _COMMAND_LOG)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._runsc:
                self._reaped, self._status = pid, status
                raise self._end()
            if pid == child:
                break
        if status != 0:
            raise _end_error(f"runsc {arguments[0]}", status, _COMMAND_LOG)


def _spawn(arguments: tuple[str, ...], log: str) -> int:
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    command = ["/bin/runsc", *_COMMON, *arguments]
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    return os.posix_spawn(
        command[0], command, _ENVIRONMENT, file_actions=actions, setsigdef=numbers
    )


def _fail(reply: socket.socket, error: OSError | ValueError) -> None:
    message = {"error": str(error), "errno": getattr(error, "errno", None)}
    try:
        wire.send(reply, message)
    except OSError:
        return  # the runner is gone


def _end_error(name: str, status: int, log: str) -> GvisorError:
    text = ""
    with suppress(FileNotFoundError), open(log, "rb") as file:
        text = file.read(_MAX_TEXT).decode("utf-8", "replace").partition("\ngoroutine ")[0]
    return GvisorError(5, f"{name} {how_ended(status)}: {text.strip() or 'it logged nothing'}")


def _bundle(plan: BootPlan) -> dict[str, Any]:
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    sets = ("bounding", "effective", "permitted")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs"},  # noqa: S108
    ]
    for number, target in enumerate(_targets(plan)):
        source, options = f"/binds/{number}", ["ro", "bind"]
        mounts.append({"destination": target, "type": "bind", "source": source, "options": options})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [INIT, ",".join(map(str, plan.door_ports)) or "0"],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(sets, capabilities),
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": plan.files, "hard": hard}],
        },
        "root": {"path": "/root", "readonly": False},
        "hostname": plan.hostname,
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
        },
    }
