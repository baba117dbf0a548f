"""Processes in groups of their own, with and without live pipes."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from benchflow_contracts import SandboxError


async def start(
    cmd: str | Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    streams: tuple[IO[bytes], IO[bytes], IO[bytes]] | None = None,
) -> Process:
    """Start a command in a new process group, with pipes or with these files."""
    words = ["sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
    stdin, stdout, stderr = streams or (PIPE, PIPE, PIPE)
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=cwd,
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"{words[0]!r} cannot be started in {str(cwd)!r}: {error}") from error


def exit_code(returncode: int) -> int:
    """Return a return code as a shell states it."""
    return 128 - returncode if returncode < 0 else returncode


def kill_group(pid: int) -> None:
    """Kill every process of a group. Idempotent."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def group_lives(pid: int) -> bool:
    """Whether any process of a group still exists."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


class PipeWriter:
    """The process's stdin."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Write all of `data`; raise `SandboxError` when the reader is gone."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise SandboxError("the process does not read its input any more") from error

    async def aclose(self) -> None:
        """Close this end. Idempotent."""
        self._writer.close()


class SubprocessProcess:
    """A running process with live pipes, the leader of its own process group."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = PipeWriter(process.stdin)
        self._stdout = process.stdout
        self._stderr = process.stderr

    @property
    def id(self) -> str:
        """The process id, as text."""
        return str(self._process.pid)

    @property
    def stdin(self) -> PipeWriter:
        """The pipe that the process reads."""
        return self._stdin

    @property
    def stdout(self) -> "PipeReader":
        """The pipe that the process writes."""
        return PipeReader(self._stdout)

    @property
    def stderr(self) -> "PipeReader":
        """The pipe of its error output."""
        return PipeReader(self._stderr)

    async def wait(self) -> int:
        """Return the exit code."""
        return exit_code(await self._process.wait())

    async def kill(self) -> None:
        """Kill the whole process group. Idempotent."""
        kill_group(self._process.pid)
        await self._process.wait()

    async def aclose(self) -> None:
        """Kill when still running and release the pipes. Idempotent."""
        await self.kill()
        await self._stdin.aclose()


class PipeReader:
    """One output stream of the process."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` at the end of the stream."""
        return await self._reader.read(max_bytes)

    def waiting(self) -> int:
        """Return 0: only a session of a live snapshot asks, and there are none here."""
        return 0
