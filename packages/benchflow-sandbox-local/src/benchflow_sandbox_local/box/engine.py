"""One run of CRIU, the engine of live snapshots: what it is told and what it can reach.

Bytes of a box decide which paths the engine touches, and it has the host's root. So it
runs in a mount namespace of its own in which all but a few places are read-only.
"""

import fcntl
import os
import select
import signal
import socket
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from . import mounts, network, numbers, syscalls, wire
from .boot import join
from .parent import die_with

LOG = "engine.log"
PIDFILE = "pid"
_MAX_LOG = 1 << 16
_START_SECONDS = 60
_ENOSPC = 28
_ROOM = 1 << 20
"""Bytes: with fewer left, an engine that failed has failed for the want of them."""
_TMP = "/tmp/"  # noqa: S108 - where the engine makes its mount points
_COMMON = (
    "--file-locks",
    "--manage-cgroups=ignore",
    "--network-lock=skip",
    "--tcp-established",
    "--ghost-limit=64M",
    "--link-remap",
    "-v2",
    f"-o{LOG}",
)


class EngineError(OSError):
    """The engine failed. The message is the end of what it logged."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A program and where it runs."""

    program: str
    preload: str | None
    """A library for its process."""
    cache: str
    """A directory that stands in for /run: what it learns of the kernel is kept there."""

    @classmethod
    def of(cls, request: dict[str, Any], cache: str) -> "Engine":
        """Return the engine that a request names."""
        told = request["engine"]
        return cls(told["program"], told["preload"], cache)

    def run(self, arguments: list[str], writable: list[str], shown: list[str]) -> NoReturn:
        """Become the engine, confined; raise `OSError` when that is not possible."""
        self._confine(writable, shown)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if self.preload is not None:
            environment["LD_PRELOAD"] = self.preload
        # It ends its own helpers by signals that the launcher ignores.
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.execve(self.program, [self.program, *arguments], environment)  # noqa: S606

    def _confine(self, writable: list[str], shown: list[str]) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(self.cache, "/run", "", syscalls.MS_BIND)
        needed = [*writable, *shown, os.path.dirname(self.program)]  # noqa: PTH120
        _cover_tmp([*needed, self.preload] if self.preload else needed)
        for path in writable:
            if not os.path.ismount(path):
                syscalls.mount(path, path, "", syscalls.MS_BIND)
        syscalls.protect_mounts()
        for path in ("/run", "/proc", _TMP, *writable):
            syscalls.open_mount(path)


def _cover_tmp(needed: list[str]) -> None:
    """Give the engine a /tmp of its own, where it mounts; show what it needs of the host's."""
    kept = [(syscalls.clone_mount(path, 0), path) for path in needed if path.startswith(_TMP)]
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("benchflow", _TMP, "tmpfs", flags, "size=1m,mode=0700")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mounts.attach(root, kept)
    os.close(root)


class Dump:
    """An engine that is ready to write down a box. It touches nothing before `begin`.

    Its configuration is a pipe: it has started when it has read a first page of that, and
    goes on when our end of the pipe is closed.

    Raises:
        EngineError: It does not start.
    """

    def __init__(
        self, engine: Engine, request: dict[str, Any], merged: str, directory: str
    ) -> None:
        os.mkdir(directory, 0o700)  # noqa: PTH102 - a path of ours
        self._directory = directory
        held, self._hold = os.pipe()
        os.write(self._hold, b"#" * fcntl.fcntl(held, fcntl.F_SETPIPE_SZ, 1))
        arguments = _dumping(request, merged, directory, held)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                die_with(parent)
                os.set_inheritable(held, True)
                engine.run(arguments, [merged, directory, request["freezer"]], [])
            finally:
                os._exit(127)
        os.close(held)
        if not select.select([], [self._hold], [], _START_SECONDS)[1]:
            self.__exit__()
            raise EngineError(5, f"the engine did not start in {_START_SECONDS} s")

    def begin(self, *, keep: bool) -> None:
        """Write down the processes of the box, which is frozen; `finish` has to follow.

        With `keep` they are as they were after it, and otherwise dead.
        """
        if keep:
            os.write(self._hold, b"\nleave-running\n")
        os.close(self._hold)

    def finish(self, seconds: float) -> None:
        """Return when all is written.

        Raises:
            EngineError: It failed and the box is as it was, unless `errno` is ETIMEDOUT: then
                the engine was ended half-way, and the box cannot be trusted any more.
        """
        if not _ends(self._pid, seconds):
            raise EngineError(110, f"the engine did not end in {seconds} s")
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        if status != 0:
            # A full file system keeps no log either: what it says comes first.
            full = _is_full(self._directory)
            raise EngineError(_ENOSPC if full else 5, complaint(self._directory, status))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _dumping(request: dict[str, Any], merged: str, directory: str, config: int) -> list[str]:
    namespace = os.stat(f"/proc/{request['pid']}/ns/net").st_ino  # noqa: PTH116
    arguments = ["dump", f"--config=/proc/self/fd/{config}", f"-t{request['pid']}"]
    arguments += [f"-D{directory}", f"--root={merged}", "--external", f"net[{namespace}]:extnet"]
    arguments += ["--freeze-cgroup", request["freezer"]]
    for number, item in enumerate(request["mounts"]):
        arguments += ["--external", f"mnt[{item['target']}]:bf{number}"]
    return [*arguments, *_COMMON]


def restore(
    engine: Engine,
    request: dict[str, Any],
    places: tuple[str, str, str],
    reply: socket.socket,
    fds: list[int],
    launcher: int,
) -> NoReturn:
    """Become the engine that brings a box back; `fds` are the new ends of its pipes.

    `places` are the mounted root, the image and a directory to work in.
    """
    merged, image, work = places
    try:
        die_with(launcher)
        for path in request["join"]:
            join(path)
        namespace = _network(request["relay_port"], reply)
        arguments = ["restore", "--restore-detached", "--restore-sibling"]
        arguments += [f"-D{image}", f"-W{work}", f"--pidfile={PIDFILE}", f"--root={merged}"]
        if request["stopped"]:
            arguments.append("--leave-stopped")
        for number, item in enumerate(request["mounts"]):
            arguments += ["--external", f"mnt[bf{number}]:{item['source']}"]
        keys = ["extnet", *(f"pipe:[{inode}]" for inode in request["pipes"])]
        for key, fd in zip(keys, (namespace, *fds), strict=True):
            os.set_inheritable(fd, True)
            arguments += ["--inherit-fd", f"fd[{fd}]:{key}"]
        numbers.hand_over(image, work, engine.preload)
        sources = [item["source"] for item in request["mounts"]]
        engine.run([*arguments, *_COMMON], [merged, work], [image, *sources])
    except BaseException as error:  # noqa: BLE001 - reported, then the process ends
        wire.send(reply, {"error": f"engine: {error}", "errno": getattr(error, "errno", None)})
    finally:
        os._exit(127)


def _network(port: int | None, reply: socket.socket) -> int:
    """Make the new network namespace and hand its outside ends to the runner."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare(syscalls.CLONE_NEWNET)
    network.raise_loopback()
    made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if port is None:
        wire.send(reply, {"ok": True}, (made,))
    else:
        with network.listen(port) as listener:
            wire.send(reply, {"ok": True}, (made, listener.fileno()))
    syscalls.setns(own, syscalls.CLONE_NEWNET)
    os.close(own)
    return made


def _is_full(directory: str) -> bool:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < _ROOM


def _ends(pid: int, seconds: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def made(directory: str) -> int:
    """Return the number of the first process that the engine in `directory` has made."""
    with open(f"{directory}/{PIDFILE}", encoding="ascii") as file:  # noqa: PTH123 - of ours
        return int(file.read())


def complaint(directory: str, status: int) -> str:
    """Return the errors that the engine logged in `directory`."""
    try:
        with open(f"{directory}/{LOG}", "rb") as file:  # noqa: PTH123 - a path of ours
            text = file.read(_MAX_LOG).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    errors = [line.partition("Error ")[2] for line in text.splitlines() if "Error " in line]
    errors = [line for line in errors if "RLIMIT_NOFILE" not in line]
    code = os.waitstatus_to_exitcode(status)
    return "; ".join(errors[:4]) or f"the engine ended with {code} and no reason"
