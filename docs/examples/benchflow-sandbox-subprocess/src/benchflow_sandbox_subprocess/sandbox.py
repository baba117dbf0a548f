"""A private directory in which commands run as plain subprocesses."""

import asyncio
import functools
import os
import shutil
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from benchflow_contracts import (
    BaseSandbox,
    Endpoint,
    ExecResult,
    SandboxError,
    SandboxSpec,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    TransferError,
)

from . import transfer
from .process import SubprocessProcess, exit_code, group_lives, kill_group, start


class SubprocessSandbox(BaseSandbox):
    """One directory tree and the processes that were started in it."""

    def __init__(self, home: Path, spec: SandboxSpec) -> None:
        super().__init__(home.name, spec)
        self._home = home
        self._root = home / "root"
        self._groups: set[int] = set()
        self._alive = True
        self._map(spec.workdir).mkdir(parents=True, exist_ok=True)

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end."""
        self._check(user)
        # Files instead of pipes: a daemon that keeps them open holds nobody up.
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin)
            given.seek(0)
            began = time.monotonic()
            process = await start(cmd, self._cwd(cwd), self._env(env), (given, out, err))
            code = await self._finish(process, timeout)
            kept, dropped = self._kept(out)
            kept_err, dropped_err = self._kept(err)
            return ExecResult(
                exit_code=code,
                stdout=kept,
                stderr=kept_err,
                stdout_dropped=dropped,
                stderr_dropped=dropped_err,
                duration_sec=time.monotonic() - began,
            )

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SubprocessProcess:
        """Start a command with live pipes in a process group of its own."""
        self._check(user)
        process = await start(cmd, self._cwd(cwd), self._env(env))
        self._remember(process.pid)
        return SubprocessProcess(process)

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy in. The files belong to the runner's user, whatever `user` says."""
        self._check(None)
        try:
            await asyncio.to_thread(transfer.upload, local, self._map(remote))
        except OSError as error:
            raise TransferError(f"upload for {user!r} to {remote!r} broke: {error}") from error

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        self._check(None)
        source = self._map(remote)
        work = functools.partial(
            transfer.download, source, local, max_bytes=max_bytes, leave_out=leave_out
        )
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise TransferError(f"download of {remote!r} broke: {error}") from error

    async def expose_port(self, port: int) -> Endpoint:
        """Return the port itself: the inside shares the host's loopback."""
        self._check(None)
        return Endpoint(url=f"http://127.0.0.1:{port}")

    async def teardown(self) -> None:
        """End every process group and remove the directory. Idempotent."""
        self._alive = False
        for pid in self._groups:
            kill_group(pid)
        self._groups.clear()
        await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)

    def _check(self, user: str | None) -> None:
        if not self._alive:
            raise SandboxError(f"sandbox {self.id!r} was torn down")
        if user not in {None, self._spec.user}:
            raise SandboxUnsupportedError(f"commands cannot run as another user: {user!r}")

    def _map(self, path: str) -> Path:
        return transfer.below(self._root, path)

    def _cwd(self, cwd: str | None) -> Path:
        path = self._map(cwd or self._spec.workdir)
        if not path.is_dir():
            raise SandboxError(f"the working directory {cwd!r} does not exist")
        return path

    def _env(self, env: Mapping[str, str] | None) -> dict[str, str]:
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._root)}
        return {**base, **self._spec.env, **(env or {})}

    def _remember(self, pid: int) -> None:
        # An empty group is forgotten at once: its number may be given to others.
        self._groups = {group for group in self._groups if group_lives(group)} | {pid}

    async def _finish(self, process: Process, timeout: float | None) -> int:
        self._remember(process.pid)
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except BaseException as error:
            kill_group(process.pid)
            await process.wait()
            if isinstance(error, TimeoutError):
                raise SandboxTimeoutError(f"the command ran for over {timeout} s") from error
            raise
        self._check(None)
        return exit_code(code)

    def _kept(self, stream: IO[bytes]) -> tuple[str, int]:
        limit = self._spec.limits.output_bytes
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        return stream.read(limit).decode("utf-8", "replace"), max(0, size - limit)
