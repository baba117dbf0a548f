"""The start, the end and the files of a sandbox, for clouds that only run commands in it."""

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, Self

from benchflow_contracts.errors import CapacityError, SandboxUnsupportedError
from benchflow_contracts.identity import RolloutIdentity
from benchflow_sandbox_core.shield import finish

from .cloud import answer_of
from .errors import check_exit
from .transport import PROGRAM, Transport

# The clock is the sandbox's own, so the clock of the runner may be wrong.
_WATCHDOG = """umask 077; mkdir -p /.benchflow && cd / || exit 1
echo $(($(date +%s) + $0)) > /.benchflow/ends
while read -r ends < /.benchflow/ends && [ "$ends" -gt "$(date +%s)" ]; do sleep 1; done"""
_EXTEND = """echo $(($(date +%s) + $0)) > /.benchflow/ends.new
mv /.benchflow/ends.new /.benchflow/ends"""

_FIRST_PAUSE, _MAX_PAUSE, _RUN_SECONDS = 0.1, 5.0, 90.0


async def wait_for_start(
    is_running: Callable[[], Awaitable[bool]], seconds: float, *, hint: str
) -> None:
    """Wait until a sandbox runs.

    Raises:
        CapacityError: The sandbox does not run after `seconds`.
    """
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(seconds):
            while not await is_running():
                await asyncio.sleep(pause)
                pause = min(_MAX_PAUSE, 1.5 * pause)
    except TimeoutError as error:
        raise CapacityError(f"a sandbox did not run within {seconds:g} s", hint=hint) from error


def lifetime_command(lifetime: float) -> list[str]:
    """Return a first process that ends `lifetime` seconds after the last extension."""
    return ["/bin/sh", "-c", _WATCHDOG, str(whole_seconds(lifetime))]


def whole_seconds(seconds: float) -> int:
    """Return at least one second, for clouds that do not take a part of one."""
    return max(1, round(seconds))


def seconds_left(labels: Mapping[str, str]) -> float | None:
    """Return the seconds until the deadline of the rollout of these labels, if it has one."""
    deadline = RolloutIdentity.of_labels(labels).deadline
    return None if deadline is None else max(0.0, deadline - time.time())


def whole_seconds_of(labels: Mapping[str, str], *, most: int, more: int, cloud: str) -> int:
    """Return the time limit of a sandbox: the deadline of its rollout and `more`, or `most`.

    Raises:
        SandboxUnsupportedError: The deadline is after `most` seconds, at which the cloud ends it.
    """
    seconds = seconds_left(labels)
    if seconds is not None and seconds > most:
        raise SandboxUnsupportedError(
            f"{cloud} ends a sandbox after {most / 3600:g} h, and the rollout may take"
            f" {seconds / 3600:.1f} h",
            hint="lower the time limits of the task",
        )
    return most if seconds is None else min(most, round(seconds) + more)


class ShellCommand(Transport, Protocol):
    """One running command, whose streams are bytes."""

    async def finish(self, stdin: bytes) -> tuple[int, str]:
        """Write the whole input; return the exit code and the end of the error output.

        Raises:
            HostError: The connection ended before the command.
        """
        ...


class ShellCloud(Protocol):
    """A cloud that runs commands in its sandboxes, and has nothing else for files."""

    async def is_running(self, sandbox: str) -> bool:
        """Return whether a sandbox runs; `False`: it is starting.

        Raises:
            SandboxLostError: It has ended. The message says why.
            SandboxUnsupportedError: Its image cannot be started.
        """
        ...

    async def start_command(self, sandbox: str, argv: Sequence[str]) -> ShellCommand:
        """Start a command as root.

        Raises:
            SandboxLostError: The sandbox has ended.
            SandboxError: The command did not start.
        """
        ...

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        ...


class ShellSandbox:
    """A `CloudSandbox` of such a cloud."""

    def __init__(self, cloud: ShellCloud, sandbox: str) -> None:
        self._cloud = cloud
        self.id = sandbox

    @classmethod
    async def start(cls, cloud: ShellCloud, sandbox: str, seconds: float, *, hint: str) -> Self:
        """Wait until a new sandbox runs. Delete one that does not; see `wait_for_start`."""
        try:
            await wait_for_start(lambda: cloud.is_running(sandbox), seconds, hint=hint)
        except BaseException:
            await finish(cloud.delete(sandbox))
            raise
        return cls(cloud, sandbox)

    async def _command(self, argv: Sequence[str]) -> ShellCommand:
        await self._cloud.is_running(self.id)  # a sandbox that has ended says why
        return await self._cloud.start_command(self.id, argv)

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside by `cat`."""
        script = (
            'umask 077; mkdir -p "$(dirname "$0")" && cat > "$0.new"'
            ' && chmod "$1" "$0.new" && mv "$0.new" "$0"'
        )
        await self.run(["/bin/sh", "-c", script, path, f"{mode:o}"], content)

    async def run(self, argv: Sequence[str], stdin: bytes = b"") -> None:
        """Run a short command to its end; see `answer_of`."""
        await answer_of(self._run(argv, stdin), f"run {argv[0]!r}", _RUN_SECONDS)

    async def _run(self, argv: Sequence[str], stdin: bytes) -> None:
        async with aclosing(await self._command(argv)) as command:
            check_exit(shlex.join(argv), *await command.finish(stdin))

    async def dial(self) -> Transport:
        """Connect to the link inside."""
        return await self._command([PROGRAM, "dial"])

    async def extend(self, lifetime: float) -> None:
        """Let a sandbox with `lifetime_command` live for `lifetime` seconds from now."""
        await self.run(["/bin/sh", "-c", _EXTEND, str(whole_seconds(lifetime))])

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent."""
        await self._cloud.delete(self.id)
