"""A BenchFlow sandbox provider in subprocesses, each sandbox in Linux namespaces of its own."""

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, STDOUT, Process, create_subprocess_exec
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp

from benchflow_contracts import (
    BaseProvider,
    BaseSandbox,
    ExecResult,
    SandboxCapabilities,
    SandboxError,
    SandboxSpec,
    SandboxTimeoutError,
)

# Process 1 ends, and the sandbox with it, when the runner closes its input.
SETUP = """set -eu; cd "$1"; mkdir -p proc dev tmp root ".$2"; chmod 1777 tmp
for d in usr bin sbin lib lib64 etc/alternatives; do
  if [ -d "/$d" ]; then mkdir -p "$d"; mount --rbind "/$d" "$d"; mount -o remount,bind,ro "$d"; fi
done
printf 'root:x:0:0::/root:/bin/sh\\n%s:x:0:0::/root:/bin/sh\\n' "$3" >etc/passwd
mount -t proc proc proc; for d in null zero urandom; do :>dev/$d; mount --bind /dev/$d dev/$d; done
ip link set lo up; echo ready; exec 3<&0; until cat <&3 >/dev/null & wait $!; do :; done"""
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "env", "-i"]
START = ["sh", "-c", 'cd -- "$0" || exit 125; exec "$@"']


class SubprocessProvider(BaseProvider):
    """Starts sandboxes by `unshare`."""

    name = "subprocess"

    static_capabilities = SandboxCapabilities(
        isolation="none", network_modes=frozenset({"none"}), spawn=False, kill_all=True
    )

    async def start(self, spec: SandboxSpec) -> "SubprocessSandbox":
        """Make the namespaces, and a root directory in them."""
        root, workdir, user = mkdtemp(prefix="sandbox-"), spec.workdir or "/", spec.user or "root"
        spec = spec.model_copy(update={"user": user, "workdir": workdir})
        words = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
        words += ["--net", "sh", "-c", SETUP, "sh", root, workdir, user]
        init = await create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        sandbox = SubprocessSandbox(Path(root), spec, init)
        assert init.stdout
        said = await init.stdout.readline()
        if said != b"ready\n":
            await sandbox.teardown()
            raise SandboxError(f"the sandbox did not start: {said.decode()}")
        return sandbox


class SubprocessSandbox(BaseSandbox):
    """Every user name is the one user inside: root, without any capability."""

    def __init__(self, root: Path, spec: SandboxSpec, init: Process) -> None:
        super().__init__(root.name, spec)
        self._root, self._init = root, init

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,  # noqa: ARG002 - there is one user
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command. A daemon that keeps its output open does not delay the result."""
        words = ["nsenter", f"--target={self._init.pid}", "--user", "--mount", "--net"]
        words += [f"--pid=/proc/{self._init.pid}/ns/pid_for_children", "--preserve-credentials"]
        words += ["chroot", str(self._root), *UNPRIVILEGED]
        values = {"PATH": os.defpath, "HOME": "/root", **self.spec.env, **(env or {})}
        words += [*(f"{name}={value}" for name, value in values.items()), *START]
        words += [cwd or self.spec.workdir, *(["sh", "-c", cmd] if isinstance(cmd, str) else cmd)]
        clock = asyncio.get_running_loop().time
        began = clock()
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            process = await create_subprocess_exec(
                *words, stdin=given, stdout=out, stderr=err, start_new_session=True
            )
            try:
                code = await asyncio.wait_for(process.wait(), timeout)
            except TimeoutError as error:
                raise SandboxTimeoutError(f"the command ran for over {timeout} s") from error
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            if self.is_closed or code == 125:
                raise SandboxError(f"sandbox {self.id!r} is closed, or its directory is missing")
            return ExecResult(
                exit_code=128 - code if code < 0 else code,
                stdout=os.pread(out.fileno(), 1 << 30, 0).decode(errors="replace"),
                stderr=os.pread(err.fileno(), 1 << 30, 0).decode(errors="replace"),
                duration_sec=clock() - began,
            )

    async def kill_all(self) -> None:
        """Kill every process except process 1, so that the files can be graded."""
        await self.exec(["kill", "-9", "-1"])

    async def teardown(self) -> None:
        """Kill process 1, and all others with it. Delete the root directory."""
        self.is_closed = True
        if self._init.returncode is None:
            self._init.kill()
        await self._init.wait()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
