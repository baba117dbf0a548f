# mypy: disable-error-code="import-not-found,misc,no-any-unimported,unused-ignore"
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""A sandbox of BenchFlow as a runtime of verifiers 0.4.

Verifiers' union of runtime types is closed, so a runtime of another package cannot be named in a
configuration. The open seam is `Agent.run(task, runtime=...)`: an agent borrows a runtime that its
caller owns.
"""

import hashlib
import shlex
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

from benchflow_contracts import BenchFlowError, ByteReader, Process, Sandbox
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import DockerConfig, DockerRuntimeInfo, ProgramResult, Runtime
from verifiers.v1.runtimes import RuntimeProcess as TheirProcess

from .port_relays import PortRelays

_MOST_BYTES = 1 << 30
_SERVICE_PORT = 8000
"""The port that verifiers gives a tool server in a sandbox that publishes one port."""


class SandboxProcess(TheirProcess):
    """A process of the sandbox with live pipes."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._code: int | None = None
        self.stdout = _chunks(process.stdout)
        self.stderr = _chunks(process.stderr)

    async def write(self, data: bytes) -> None:
        """Write to the standard input."""
        await self._process.stdin.write(data)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        self._code = await self._process.wait()
        return self._code

    async def poll(self) -> int | None:
        """Return the exit code if `wait` has returned it; else `None`."""
        return self._code

    async def terminate(self) -> None:
        """Kill the process group: a sandbox has no gentler signal."""
        await self._process.kill()

    async def kill(self) -> None:
        """Kill the process group."""
        await self._process.kill()


async def _chunks(reader: ByteReader) -> AsyncIterator[bytes]:
    while chunk := await reader.read():
        yield chunk


class SandboxRuntime(Runtime):
    """Runs the programs of a harness in a sandbox that the caller owns.

    Traces name the runtime type `docker`, the nearest of the types that verifiers reads, with the
    id `benchflow:SANDBOX`.

    Args:
        sandbox: The sandbox, which this object never ends.
        relays: The doors of the sandbox to the harness's endpoints on the host.
        python: A Python inside that has what the harness's programs import. Without one, uv
            installs their requirements, and needs a network.
    """

    supports_user = True

    def __init__(self, sandbox: Sandbox, relays: PortRelays, python: str = "") -> None:
        super().__init__(f"benchflow-{sandbox.id}")
        self.sandbox = sandbox
        self._relays = relays
        self._python = python
        self._background: list[Process] = []
        spec = sandbox.spec
        self.config = DockerConfig(image=spec.image or "host", workdir=spec.workdir)
        self.info = DockerRuntimeInfo(**self.config.model_dump(), id=f"benchflow:{sandbox.id}")

    async def start(self) -> None:
        """Do nothing: the sandbox runs."""

    async def teardown(self) -> None:
        """End the processes that this object started in the background."""
        background, self._background = self._background, []
        for process in background:
            await process.aclose()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a command to its end.

        Raises:
            SandboxError: The command could not be started, or wrote more than the sandbox keeps.
        """
        try:
            done = await self.sandbox.exec(argv, env=self.process_env(env), user=self.user)
        except BenchFlowError as error:
            raise SandboxError(f"{argv[0]!r} in the sandbox: {error}") from error
        if done.stdout_dropped:
            raise SandboxError(f"{argv[0]!r} wrote {done.stdout_dropped} bytes too many")
        return ProgramResult(done.exit_code, done.stdout, done.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> SandboxProcess:
        """Start a process with live pipes."""
        try:
            process = await self.sandbox.spawn(argv, env=self.process_env(env), user=self.user)
        except BenchFlowError as error:
            raise SandboxError(f"{argv[0]!r} in the sandbox: {error}") from error
        self._background.append(process)
        return SandboxProcess(process)

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a process whose output goes to the file `log` inside."""
        command = f"exec {shlex.join(argv)} > {shlex.quote(log)} 2>&1 < /dev/null"
        await self.open_process(["sh", "-c", command], env)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        # Links inside are never followed to the host, and the size is checked at the source.
        with tempfile.TemporaryDirectory() as directory:
            most = _MOST_BYTES if max_bytes is None else max_bytes
            copy = Path(directory) / "file"
            try:
                await self.sandbox.download(self._absolute(path), copy, max_bytes=most)
                return copy.read_bytes()
            except (BenchFlowError, OSError) as error:
                raise SandboxError(f"read {path!r}: {error}") from error

    async def write(self, path: str, data: bytes) -> None:
        """Write a file as the user of this view. Missing parents are created."""
        script = 'mkdir -p "$(dirname -- "$1")" && cat > "$1"'
        try:
            done = await self.sandbox.exec(
                ["sh", "-c", script, "sh", self._absolute(path)], user=self.user, stdin=data
            )
        except BenchFlowError as error:
            raise SandboxError(f"write {path!r}: {error}") from error
        if done.exit_code:
            raise SandboxError(f"write {path!r}: {done.stderr.strip()[-500:]}")

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self.sandbox.spec.workdir or "/") / path)

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Return the command of a script: by the Python inside, or as verifiers does it."""
        if not self._python:
            prepared: list[str] = await super().prepare_uv_script(script, env, activate=activate)
            return prepared
        data = script.encode() if isinstance(script, str) else script
        user = "" if self.user is None else f"-{self.user}"
        path = f"{self.scripts_dir}{user}/{hashlib.sha256(data).hexdigest()}.py"
        await self.write(path, data)
        return [self._python, path]

    def host_url(self, url: str) -> str:
        """Return the address inside of a URL of the host."""
        return self._relays.inside(url)

    @property
    def published_port(self) -> int | None:
        """The port of a tool server inside, if the sandbox exposes it."""
        return _SERVICE_PORT if _SERVICE_PORT in self.sandbox.spec.ports else None

    async def expose(self, port: int) -> str:
        """Return the address on the host of a port inside."""
        return (await self.sandbox.expose_port(port)).url
