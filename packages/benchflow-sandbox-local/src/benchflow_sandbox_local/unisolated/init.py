"""Processes of the host with a common environment variable."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_native import InitError

from benchflow_sandbox_local.readiness import readable

MARK = "BENCHFLOW_PLAIN_SANDBOX"
_ROUNDS = 200
_EMPTY_ROUNDS = 2
"""A process can start another one and end after it was listed and before it was read."""
_PAUSE = 0.002


class PlainInit:
    """Starts processes as the runner's own user, with all of its rights."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,  # noqa: ARG002 - only the runner's user exists
        gid: int,  # noqa: ARG002
        groups: Sequence[int] = (),  # noqa: ARG002
        rlimits: Mapping[int, tuple[int, int]] | None = None,  # noqa: ARG002
        fds: tuple[int, int, int],
    ) -> int:
        """Start a program in a session of its own; return its number."""
        if not os.access(cwd, os.X_OK):
            raise InitError(errno.ENOENT, "cwd", f"spawn of {argv[0]!r}")
        try:
            with shortage_is_host_error("start a process"):
                process = subprocess.Popen(  # noqa: ASYNC220 - returns once the program runs
                    list(argv),
                    stdin=fds[0],
                    stdout=fds[1],
                    stderr=fds[2],
                    env={**env, MARK: self._name},
                    cwd=cwd,
                    start_new_session=True,
                )
        except OSError as error:
            stage = "fork" if error.errno == errno.EAGAIN else "exec"
            raise InitError(error.errno or errno.EIO, stage, f"spawn of {argv[0]!r}") from error
        self._running[process.pid] = process
        return process.pid

    async def ping(self) -> None:
        """Return at once: this process itself starts the others."""

    async def wait(self, pid: int) -> int:
        """Return the exit code as a shell reports it. Call this once."""
        process = self._running.get(pid)
        if process is None:
            raise InitError(errno.ESRCH, "wait", f"wait for {pid}")
        if process.returncode is None:
            pidfd = os.pidfd_open(pid)
            try:
                await readable(pidfd)
            finally:
                os.close(pidfd)
        code = process.wait()
        self._running.pop(pid, None)
        return code if code >= 0 else 128 - code

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal to a process or to its group."""
        try:
            if group:
                os.killpg(pid, signal)
            else:
                os.kill(pid, signal)
        except ProcessLookupError as error:
            raise InitError(errno.ESRCH, "kill", f"kill of {pid}") from error

    async def rest(self) -> None:
        """Do nothing: calls to a plain process use no connection."""

    def resume(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Kill every process with the mark, and reap children. Idempotent.

        Raises:
            SandboxError: A process did not die.
        """
        kill_marked(self._name)
        # `Popen` stores the exit codes for callers that still wait.
        for process in self._running.values():
            process.wait()


def kill_marked(name: str) -> None:
    """Kill every process of this user that has the mark of the sandbox `name`.

    A process without isolation can remove the mark from its own environment, and then survives.

    Raises:
        SandboxError: A process did not die.
    """
    mark = f"{MARK}={name}".encode()
    empty_rounds = 0
    for _ in range(_ROUNDS):
        alive = [pid for pid in _processes() if mark in _environment(pid)]
        empty_rounds = 0 if alive else empty_rounds + 1
        if empty_rounds == _EMPTY_ROUNDS:
            return
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)
    raise SandboxError(f"processes of the plain sandbox {name!r} do not die")


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def _environment(pid: int) -> list[bytes]:
    """Return the variables of a process; none if the process is dead."""
    process = Path(f"/proc/{pid}")
    found = b""
    with suppress(OSError):
        for _ in range(_ROUNDS):
            found = process.joinpath("environ").read_bytes()
            if found or process.joinpath("cmdline").read_bytes():
                break
            # While the kernel replaces a program, there is a program but neither of the two.
            process.joinpath("exe").readlink()
            time.sleep(_PAUSE)
    return found.split(b"\0")
