"""One run of CRIU: its arguments, and the files that it can reach.

Bytes of a sandbox decide which paths the engine touches, and it has the host's root. So it
runs in a mount namespace of its own in which all but a few places are read-only.
"""

import fcntl
import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from benchflow_sandbox_local.launcher_process import syscalls
from benchflow_sandbox_local.launcher_process.processes import die_with
from benchflow_sandbox_local.launcher_process.start import mounts

from .log import LOG, complaint, note, open_errors

PIDFILE = "pid"
PLACE = "/tmp/work"  # noqa: S108 - in a /tmp of its own
"""What an engine that waits calls its directory."""
_START_SECONDS = 60
_ENOSPC = 28
_ROOM = 1 << 20
"""Bytes. When fewer are left, an engine that failed has failed for lack of space."""
_ORDERS = 3
"""The descriptor of its orders; see csrc/engine/waiting.c."""
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
class ConfinedCriu:
    """A program and where it runs."""

    program: str
    preload: str
    """A library for its process."""
    cache: str
    """A directory that stands in for /run: what it learns of the kernel is kept there."""

    @classmethod
    def of(cls, request: dict[str, Any], cache: str) -> "ConfinedCriu":
        """Return the engine that a request names."""
        named = request["engine"]
        return cls(named["program"], named["preload"], cache)

    def run(self, arguments: list[str], writable: list[str], errors: int) -> NoReturn:
        """Become the engine, confined; raise `OSError` when that is not possible.

        Its standard error is the descriptor `errors`.
        """
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._confine(_copies([*writable, *self._parts]))
        for path in writable:
            if not os.path.ismount(path):
                syscalls.mount(path, path, "", syscalls.MS_BIND)
        self._become(arguments, writable, {}, errors)

    def wait(self, room: str, tree: int, orders: int, errors: int) -> NoReturn:
        """Become an engine that reads from the socket `orders` which sandbox it restores.

        It calls its directory, the detached mount `tree`, `PLACE`, and sees nothing else of what
        is mounted below `room`.
        """
        os.setpgid(0, 0)  # see `end_engine`
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._confine([*_copies(self._parts), (tree, PLACE)], without=room)
        os.dup2(orders, _ORDERS)
        os.set_inheritable(_ORDERS, True)
        arguments = ["restore", "--restore-detached", "--restore-sibling", f"-D{PLACE}/image"]
        arguments += [f"-W{PLACE}", f"--pidfile={PIDFILE}", f"--root={PLACE}/root", *_COMMON]
        place = {"CRIU_CONFIG_FILE": f"/proc/self/fd/{_ORDERS}"}
        self._become(arguments, [PLACE], place, errors)

    @property
    def _parts(self) -> tuple[str, str]:
        return os.path.dirname(self.program), self.preload  # noqa: PTH120

    def _confine(self, kept: list[tuple[int, str]], without: str | None = None) -> None:
        """Take an own /run and /tmp; of the host's /tmp what is `kept`."""
        syscalls.mount(self.cache, "/run", "", syscalls.MS_BIND)
        if without is not None:
            syscalls.umount(without)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("benchflow", _TMP, "tmpfs", flags, "size=1m,mode=0700")
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.attach(root, kept)
        os.close(root)

    def _become(
        self, arguments: list[str], writable: list[str], variables: dict[str, str], errors: int
    ) -> NoReturn:
        syscalls.protect_mounts()
        for path in ("/run", "/proc", _TMP, *writable):
            syscalls.open_mount(path)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_PRELOAD": self.preload}
        # It ends its own helpers by signals that the launcher ignores.
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        for stream, fd in enumerate((null, null, errors)):
            os.dup2(fd, stream)
        os.execve(self.program, [self.program, *arguments], environment | variables)  # noqa: S606


def _copies(paths: Iterable[str]) -> list[tuple[int, str]]:
    """Copy the mounts of what is below the host's /tmp."""
    return [(syscalls.clone_mount(path, 0), path) for path in paths if path.startswith(_TMP)]


class CriuDump:
    """An engine that is ready to dump a sandbox. It touches nothing before `begin`.

    Its configuration is a pipe: it has started when it has read a first page of that, and
    continues when our end of the pipe is closed.

    Raises:
        EngineError: It does not start.
    """

    def __init__(
        self, engine: ConfinedCriu, request: dict[str, Any], merged: str, directory: str
    ) -> None:
        os.mkdir(directory, 0o700)  # noqa: PTH102 - a path of ours
        self._directory = directory
        held, self._hold = os.pipe()
        os.write(self._hold, b"#" * fcntl.fcntl(held, fcntl.F_SETPIPE_SZ, 1))
        arguments = _dumping(request, merged, directory, held)
        errors = open_errors(directory)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                die_with(parent)
                os.set_inheritable(held, True)
                engine.run(arguments, [merged, directory, request["freezer"]], errors)
            except BaseException as error:  # noqa: BLE001 - read by `complaint`
                note(errors, error)
            finally:
                os._exit(127)
        os.close(held)
        os.close(errors)
        if not select.select([], [self._hold], [], _START_SECONDS)[1]:
            self.__exit__()
            raise EngineError(5, f"the engine did not start in {_START_SECONDS} s")

    def begin(self, *, keep: bool) -> None:
        """Begin to dump the frozen sandbox. The caller must call `finish`.

        With `keep` the processes are unchanged after the dump; otherwise they are dead.
        """
        if keep:
            with suppress(BrokenPipeError):  # it has ended: `finish` says why
                os.write(self._hold, b"\nleave-running\n")
        os.close(self._hold)

    def finish(self, seconds: float) -> None:
        """Return when the dump is complete.

        Raises:
            EngineError: It failed and the sandbox is as it was, unless `errno` is ETIMEDOUT: then
                the engine was ended half-way, and the sandbox cannot be trusted any more.
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


def _is_full(directory: str) -> bool:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < _ROOM


def _ends(pid: int, seconds: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def end_engine(pid: int) -> None:
    """End a child that has waited, and its own helpers: not all are in the group of the sandbox."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it has not come to have a group, nor helpers
        os.killpg(pid, signal.SIGKILL)


def made(directory: str) -> int:
    """Return the number of the first process that the engine in `directory` has made."""
    with open(f"{directory}/{PIDFILE}", encoding="ascii") as file:  # noqa: PTH123 - of ours
        return int(file.read())
