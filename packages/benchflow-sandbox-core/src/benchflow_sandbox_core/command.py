"""Run one command in a sandbox to its end."""

import asyncio
import errno
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxError, SandboxLimitError, SandboxTimeoutError
from benchflow_contracts.pausing import running_time, running_timeout
from benchflow_contracts.sandbox import ExecResult
from benchflow_sandbox_native import InitError

from .accounts import Account
from .capture import Capture
from .pipes import PipeWriter
from .running_box import LimitCounter, RunningBox, reap
from .shield import finish

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KILLED = 128 + signal.SIGKILL
_RLIMITS = {int(resource.RLIMIT_CORE): (0, 0)}


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """An argument vector with its user, its directory and its variables."""

    argv: tuple[str, ...]
    account: Account
    cwd: str
    env: Mapping[str, str]

    @classmethod
    def of(
        cls,
        cmd: str | Sequence[str],
        account: Account,
        cwd: str,
        env: Mapping[str, str],
        shell: str,
    ) -> "SandboxCommand":
        """Build a command; add the variables that a login would set."""
        argv = (shell, "-c", cmd) if isinstance(cmd, str) else tuple(cmd)
        if not argv:
            raise SandboxError("an empty command cannot be started")
        base = {"PATH": _PATH, "LANG": "C.UTF-8", **account.environment}
        return cls(argv, account, cwd, {**base, **env})

    @property
    def shown(self) -> str:
        """The command for a message."""
        return " ".join(self.argv)[:200]

    async def start(self, box: RunningBox, fds: tuple[int, int, int]) -> int:
        """Start the command; return its pid inside.

        Raises:
            SandboxLimitError: The limit of processes is reached.
            SandboxError: The command cannot be started, or the sandbox is gone.
        """
        try:
            return await box.init.spawn(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                uid=self.account.uid,
                gid=self.account.gid,
                groups=self.account.groups if self.account.uid else (),
                rlimits=_RLIMITS,
                fds=fds,
            )
        except InitError as error:
            raise self._start_error(error) from error
        except ValueError as error:
            raise SandboxError(f"{self.shown!r} cannot be encoded: {error}") from error

    def _start_error(self, error: InitError) -> SandboxError:
        if (error.errno, error.stage) == (errno.EAGAIN, "fork"):
            return SandboxLimitError(f"{self.shown!r}: no process is left (pids limit)")
        if error.stage == "connection":
            return SandboxError(f"{self.shown!r}: the sandbox is gone ({error})")
        if error.stage == "cwd":
            return SandboxError(
                f"{self.shown!r}: no directory {self.cwd!r} for {self.account.name!r}",
                caused_by="inside",
            )
        return SandboxError(f"{self.shown!r} cannot be started: {error}", caused_by="inside")

    async def run(
        self,
        box: RunningBox,
        meter: LimitCounter,
        stdin: bytes,
        timeout: float | None,
        limit: int,
    ) -> ExecResult:
        """Run the command and collect its output. On failure its whole group is dead."""
        began, before = running_time(), meter.hits("memory")
        with box.streams() as streams:
            pid = await self._begin(box, streams.child, timeout)
            streams.close_child()
            left = None if timeout is None else max(0.0, timeout - (running_time() - began))
            out = Capture(streams.stdout.detach(), limit)
            err = Capture(streams.stderr.detach(), limit)
            try:
                code = await self._finish(box, pid, streams.stdin, stdin, left, timeout)
                out.finish()
                err.finish()
            finally:
                out.close()
                err.close()
        if code == _KILLED and meter.hits("memory") > before:
            raise SandboxLimitError(f"{self.shown!r} was killed: the memory limit was hit")
        return ExecResult(
            exit_code=code,
            stdout=out.text,
            stderr=err.text,
            stdout_dropped=out.dropped,
            stderr_dropped=err.dropped,
            duration_sec=running_time() - began,
        )

    async def _begin(
        self, box: RunningBox, fds: tuple[int, int, int], timeout: float | None
    ) -> int:
        # A process of the same user can stop our process before it executes the command.
        try:
            async with running_timeout(timeout):
                return await self.start(box, fds)
        except TimeoutError as error:
            raise self._timeout_error(timeout) from error

    def _timeout_error(self, timeout: float | None) -> SandboxTimeoutError:
        return SandboxTimeoutError(f"{self.shown!r} did not end in {timeout} s")

    async def _finish(
        self,
        box: RunningBox,
        pid: int,
        pipe: PipeWriter,
        stdin: bytes,
        left: float | None,
        timeout: float | None,
    ) -> int:
        try:
            async with running_timeout(left):
                if not stdin:
                    pipe.close()
                    return await box.init.wait(pid)
                async with asyncio.TaskGroup() as group:
                    feeding = group.create_task(_feed(pipe, stdin))
                    code = await box.init.wait(pid)
                    feeding.cancel()
                return code
        except BaseException as error:
            await finish(_end(box, pid))
            if isinstance(error, TimeoutError):
                raise self._timeout_error(timeout) from error
            if isinstance(error, InitError):
                raise SandboxError(f"{self.shown!r}: the sandbox is gone ({error})") from error
            raise


async def _feed(pipe: PipeWriter, data: bytes) -> None:
    # A command that does not read all of its input is not an error.
    with suppress(SandboxError):
        await pipe.write(data)
    pipe.close()


async def _end(box: RunningBox, pid: int) -> None:
    # A sandbox that is gone has killed the process already.
    with suppress(InitError, SandboxError):
        await box.init.kill(pid, signal.SIGKILL, group=True)
        await reap(box.init, pid)
