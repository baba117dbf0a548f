"""A sandbox and processes on the host, for unit tests. Nothing here isolates anything."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow_contracts import ExecResult, SandboxError, SandboxSpec, TransferError


class Reader:
    def __init__(self, stream):
        self._stream = stream

    async def read(self, max_bytes=65536):
        return await self._stream.read(max_bytes)

    def waiting(self):
        return len(self._stream._buffer)


class Writer:
    def __init__(self, stream):
        self._stream = stream

    async def write(self, data):
        try:
            self._stream.write(data)
            await self._stream.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SandboxError("the reader is gone") from error

    async def aclose(self):
        self._stream.close()


class HostProcess:
    """A subprocess of the test, in a process group of its own."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.id = str(process.pid)
        self.stdin = Writer(process.stdin)
        self.stdout = Reader(process.stdout)
        self.stderr = Reader(process.stderr)

    @classmethod
    async def start(cls, argv, **options):
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, **options
            )
        )

    async def wait(self):
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        # Not `wait`: that one waits for the pipes, too, which nobody may be reading.
        while self._process.returncode is None:  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.005)

    async def aclose(self):
        await self.kill()
        self._process._transport.close()

    @property
    def group_is_dead(self):
        """Whether no process of the group runs; one that nobody has reaped yet does not.

        Only the leader's end was waited for: a killed member may need a moment to be gone.
        """
        deadline = time.monotonic() + 30
        while alive := self._group_runs():
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return not alive

    def _group_runs(self):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state != "Z":
                    return True
        return False


class HostSandbox:
    """Runs commands on the host; paths below /opt, /solution and /logs are moved below `root`."""

    id = "host"

    def __init__(self, root: Path):
        self.root = root
        for name in ("home", "workspace"):
            (root / name).mkdir(exist_ok=True)
        self.spec = SandboxSpec(workdir=str(root / "workspace"))
        self.processes = []
        self.workspace = root / "workspace"

    def place(self, text):
        for top in ("/opt/benchflow", "/solution", "/logs"):
            text = text.replace(top, str(self.root) + top)
        return text

    def _env(self, env):
        moved = {key: self.place(value) for key, value in (env or {}).items()}
        path = str(Path(sys.executable).parent) + ":/usr/bin:/bin"
        return {"HOME": str(self.root / "home"), **moved, "PATH": path}

    def _argv(self, cmd):
        parts = ["sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        return [self.place(part) for part in parts]

    async def spawn(self, cmd, *, user=None, cwd=None, env=None):
        process = await HostProcess.start(
            self._argv(cmd), cwd=cwd or self.spec.workdir, env=self._env(env)
        )
        self.processes.append(process)
        return process

    async def exec(self, cmd, *, user=None, timeout=None, cwd=None, env=None, stdin=b""):
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *self._argv(cmd),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd or self.spec.workdir,
            env=self._env(env),
        )
        out, err = await process.communicate(stdin)
        return ExecResult(
            exit_code=process.returncode,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            duration_sec=time.monotonic() - started,
        )

    async def upload(self, local, remote, *, user="root"):
        target = Path(self.place(remote))
        target.parent.mkdir(parents=True, exist_ok=True)
        if local.is_dir():
            shutil.copytree(local, target, dirs_exist_ok=True)
        elif local.is_file():
            shutil.copyfile(local, target)
        else:
            raise TransferError("only files and directories here")

    async def aclose(self):
        for process in self.processes:
            await process.aclose()


def run_in_sandbox(root: Path, body: Callable[[HostSandbox], Awaitable[Any]]) -> Any:
    """Run an async test body with a sandbox below `root`, and end its processes."""

    async def main() -> Any:
        sandbox = HostSandbox(root)
        try:
            return await body(sandbox)
        finally:
            await sandbox.aclose()

    return asyncio.run(main())
