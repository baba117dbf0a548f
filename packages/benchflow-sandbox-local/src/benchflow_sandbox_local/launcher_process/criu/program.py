"""One run of CRIU: its arguments, and the files that it can write.

A sandbox can influence the paths that the engine opens, and the engine sees the host's root. So it
runs in its own mount namespace, in which only a few places are writable.
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

from .log import LOG, failure_reason, open_errors, report

PIDFILE = "pid"
PLACE = "/tmp/work"  # noqa: S108 - in a private /tmp
"""The path of a standby engine's directory in its mount namespace."""
_START_SECONDS = 60
_ENOSPC = 28
_MIN_FREE = 1 << 20
"""Bytes. If fewer are free, a failed engine had no space left."""
_ORDERS = 3
"""The descriptor of the orders; see csrc/engine/orders.c."""
_TMP = "/tmp/"  # noqa: S108 - the engine creates its mount points there
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
    """The engine failed. The message contains errors of its log."""


@dataclass(frozen=True, slots=True)
class ConfinedCriu:
    """A CRIU program that runs with confined mounts."""

    program: str
    preload: str
    """The library to preload into its process."""
    cache: str
    """The directory that replaces /run. The engine stores its cache of kernel features there."""

    @classmethod
    def of(cls, request: dict[str, Any], cache: str) -> "ConfinedCriu":
        """Return the engine of a request."""
        engine = request["engine"]
        return cls(engine["program"], engine["preload"], cache)

    def run(self, arguments: list[str], writable: list[str], errors: int) -> NoReturn:
        """Replace this process by the confined engine; raise `OSError` if that fails.

        The engine's standard error is the descriptor `errors`.
        """
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._confine(_copies([*writable, *self._parts]))
        for path in writable:
            if not os.path.ismount(path):
                syscalls.mount(path, path, "", syscalls.MS_BIND)
        self._become(arguments, writable, {}, errors)

    def wait(self, boxes: str, tree: int, orders: int, errors: int) -> NoReturn:
        """Replace this process by an engine that receives its orders from the socket `orders`.

        The detached mount `tree`, its directory, is at `PLACE`. The engine does not see the other
        mounts below `boxes`.
        """
        os.setpgid(0, 0)  # see `end_engine`
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._confine([*_copies(self._parts), (tree, PLACE)], without=boxes)
        os.dup2(orders, _ORDERS)
        os.set_inheritable(_ORDERS, True)
        arguments = ["restore", "--restore-detached", "--restore-sibling", f"-D{PLACE}/image"]
        arguments += [f"-W{PLACE}", f"--pidfile={PIDFILE}", f"--root={PLACE}/root", *_COMMON]
        config = {"CRIU_CONFIG_FILE": f"/proc/self/fd/{_ORDERS}"}
        self._become(arguments, [PLACE], config, errors)

    @property
    def _parts(self) -> tuple[str, str]:
        return os.path.dirname(self.program), self.preload  # noqa: PTH120

    def _confine(self, trees: list[tuple[int, str]], without: str | None = None) -> None:
        """Mount a private /run and /tmp, and attach `trees`, which are below /tmp."""
        syscalls.mount(self.cache, "/run", "", syscalls.MS_BIND)
        if without is not None:
            syscalls.umount(without)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("benchflow", _TMP, "tmpfs", flags, "size=1m,mode=0700")
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.attach(root, trees)
        os.close(root)

    def _become(
        self, arguments: list[str], writable: list[str], variables: dict[str, str], errors: int
    ) -> NoReturn:
        syscalls.protect_mounts()
        for path in ("/run", "/proc", _TMP, *writable):
            syscalls.make_writable(path)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_PRELOAD": self.preload}
        # The engine ends its helpers by signals that the launcher ignores.
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        for stream, fd in enumerate((null, null, errors)):
            os.dup2(fd, stream)
        os.execve(self.program, [self.program, *arguments], environment | variables)  # noqa: S606


def _copies(paths: Iterable[str]) -> list[tuple[int, str]]:
    """Copy the mounts of the paths that are below the host's /tmp."""
    return [(syscalls.clone_mount(path, 0), path) for path in paths if path.startswith(_TMP)]


class CriuDump:
    """An engine that is ready to dump a sandbox. It does not touch the sandbox before `begin`.

    Its configuration is a pipe. The engine has started when it has read the first page, and
    continues when the launcher closes its end of the pipe.

    Raises:
        EngineError: The engine does not start.
    """

    def __init__(
        self, engine: ConfinedCriu, request: dict[str, Any], merged: str, directory: str
    ) -> None:
        os.mkdir(directory, 0o700)  # noqa: PTH102 - an internal path
        self._directory = directory
        config, self._config_writer = os.pipe()
        os.write(self._config_writer, b"#" * fcntl.fcntl(config, fcntl.F_SETPIPE_SZ, 1))
        arguments = _dump_arguments(request, merged, directory, config)
        errors = open_errors(directory)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                die_with(parent)
                os.set_inheritable(config, True)
                engine.run(arguments, [merged, directory, request["freezer"]], errors)
            except BaseException as error:  # noqa: BLE001 - read by `failure_reason`
                report(errors, error)
            finally:
                os._exit(127)
        os.close(config)
        os.close(errors)
        if not select.select([], [self._config_writer], [], _START_SECONDS)[1]:
            self.__exit__()
            raise EngineError(5, f"the engine did not start in {_START_SECONDS} s")

    def begin(self, *, keep: bool) -> None:
        """Begin to dump the frozen sandbox. The caller must call `finish`.

        With `keep` the processes are unchanged after the dump; otherwise they are dead.
        """
        if keep:
            with suppress(BrokenPipeError):  # the engine has ended: `finish` raises the reason
                os.write(self._config_writer, b"\nleave-running\n")
        os.close(self._config_writer)

    def finish(self, seconds: float) -> None:
        """Return when the dump is complete.

        Raises:
            EngineError: The dump failed, and the sandbox is unchanged. If `errno` is ETIMEDOUT,
                the engine was killed during the dump, and the sandbox must not be used again.
        """
        if not _ends(self._pid, seconds):
            raise EngineError(110, f"the engine did not end in {seconds} s")
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        if status != 0:
            full = _is_full(self._directory)
            raise EngineError(_ENOSPC if full else 5, failure_reason(self._directory, status))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _dump_arguments(request: dict[str, Any], merged: str, directory: str, config: int) -> list[str]:
    namespace = os.stat(f"/proc/{request['pid']}/ns/net").st_ino  # noqa: PTH116
    arguments = ["dump", f"--config=/proc/self/fd/{config}", f"-t{request['pid']}"]
    arguments += [f"-D{directory}", f"--root={merged}", "--external", f"net[{namespace}]:extnet"]
    arguments += ["--freeze-cgroup", request["freezer"]]
    for number, item in enumerate(request["mounts"]):
        arguments += ["--external", f"mnt[{item['target']}]:bf{number}"]
    return [*arguments, *_COMMON]


def _is_full(directory: str) -> bool:
    info = os.statvfs(directory)
    return info.f_bavail * info.f_frsize < _MIN_FREE


def _ends(pid: int, seconds: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def end_engine(pid: int) -> None:
    """Kill a standby engine and its helpers, which may be outside of the sandbox's group."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # the engine has no process group and no helpers yet
        os.killpg(pid, signal.SIGKILL)


def restored_pid(directory: str) -> int:
    """Return the number of the first process that the engine in `directory` has restored."""
    with open(f"{directory}/{PIDFILE}", encoding="ascii") as file:  # noqa: PTH123 - internal
        return int(file.read())
