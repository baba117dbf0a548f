"""The sandbox provider `benchflow` of Inspect, over the sandboxes of BenchFlow."""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# pyright: basic, reportMissingImports=false
# ruff: noqa: A002 - Inspect calls `input` and `id` by these names

import posixpath
import shlex
from typing import Any, Literal, overload

from benchflow_contracts import (
    ExecResult as Finished,
)
from benchflow_contracts import (
    HostError,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
)
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from . import files
from .pool import POOL, OpenSandbox
from .settings import COMPOSE_FILES, DOCKERFILE, SETTINGS_FILE, BenchflowSandboxConfig


@sandboxenv(name="benchflow")
class BenchflowSandboxEnvironment(SandboxEnvironment):
    """One sandbox of BenchFlow as a sandbox environment of Inspect.

    Commands and files use the default user of the sandbox's spec. Relative paths are below its
    working directory.
    """

    def __init__(self, opened: OpenSandbox) -> None:
        super().__init__()
        self.opened = opened

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of BenchFlow."""
        return self.opened.sandbox

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: ARG002 - the shape is Inspect's
        concurrency: bool = True,  # noqa: ARG002
    ) -> ExecResult[str]:
        """Run a command; see `SandboxEnvironment.exec`.

        A command that timed out is not run again: the sandbox has killed it, so the time did not
        run out in the engine. A missing program or user is a failed result, as in Docker.
        """
        stdin = input.encode() if isinstance(input, str) else input or b""
        try:
            async with files.short_command(self.sandbox, cmd) as short:
                done = await self.sandbox.exec(
                    short, user=user, timeout=timeout, cwd=self._path(cwd), env=env, stdin=stdin
                )
        except SandboxTimeoutError as error:
            raise TimeoutError(f"Command timed out after {timeout} seconds") from error
        except SandboxError as error:
            return await self._refused(error, cmd, user)
        _check_size(done)
        return ExecResult(done.ok, done.exit_code, done.stdout, done.stderr)

    async def _refused(
        self, error: SandboxError, cmd: list[str], user: str | None
    ) -> ExecResult[str]:
        if user is not None and not self.opened.users and user != self.sandbox.spec.user:
            raise SandboxUserUnsupportedError(
                f"the provider {self.opened.provider!r} cannot run commands as {user!r}"
            ) from error
        text = str(error)
        if isinstance(error, HostError):
            raise SandboxUnavailableError(text) from error
        if "Permission denied" in text:
            raise PermissionError(text) from error
        if "no user" in text:
            return ExecResult(False, 126, "", text)
        if "No such file or directory" in text or "no directory" in text:
            return ExecResult(False, 127, "", f"{cmd[0]}: {text}")
        raise SandboxUnavailableError(text) from error

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file as the default user; see `SandboxEnvironment.write_file`."""
        body = contents.encode() if isinstance(contents, str) else contents
        await files.write(self.sandbox, self._path(file) or file, body)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a regular file as the default user; see `SandboxEnvironment.read_file`."""
        body = await files.read(self.sandbox, self._path(file) or file, shown=file)
        return body.decode() if text else body

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return the command that opens a shell in the sandbox, in its working directory.

        The default of `user` is the user of the sandbox.

        Raises:
            NotImplementedError: The provider is not `docker`.
        """
        if self.opened.provider != "docker":
            raise NotImplementedError(f"no shell for the provider {self.opened.provider!r}")
        name, spec = f"benchflow-{self.sandbox.id}", self.sandbox.spec
        as_user = user or spec.user
        options = ["--user", as_user] if as_user else []
        options += ["--workdir", spec.workdir] if spec.workdir else []
        command = shlex.join(["docker", "exec", "-it", *options, name, "sh", "-l"])
        return SandboxConnection(type="benchflow", command=command, container=name)

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls of Inspect's service requests."""
        return 0.2

    def _path(self, path: str | None) -> str | None:
        return None if path is None else posixpath.join(self.sandbox.spec.workdir or "/", path)

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the names of files that Inspect looks for beside a task."""
        return [SETTINGS_FILE, *COMPOSE_FILES, DOCKERFILE]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read the configuration that a log contains."""
        return BenchflowSandboxConfig.model_validate(config)

    @classmethod
    async def task_init(
        cls,
        task_name: str,  # noqa: ARG003
        config: BaseModel | str | None,
    ) -> None:
        """Check that the provider works, before any sample starts."""
        await POOL.check(BenchflowSandboxConfig.of(config))

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        metadata: dict[str, str],  # noqa: ARG003
    ) -> dict[str, SandboxEnvironment]:
        """Create the sandbox of a sample."""
        settings = BenchflowSandboxConfig.of(config)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        opened = await POOL.create(settings, task_name, output_bytes=limit)
        return {"default": cls(opened)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: BaseModel | str | None,  # noqa: ARG003
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003
    ) -> None:
        """Delete the sandbox of a sample, also after an interruption."""
        for environment in environments.values():
            await POOL.delete(environment.as_type(cls).opened)

    @classmethod
    async def task_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: BaseModel | str | None,  # noqa: ARG003
        cleanup: bool,
    ) -> None:
        """Delete the sandboxes that are left, unless the operator keeps them."""
        if cleanup:
            await POOL.aclose()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Delete sandboxes of evaluations whose process has ended. `id` is a rollout."""
        await POOL.reap(id)


def _check_size(done: Finished) -> None:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    for text, dropped in ((done.stdout, done.stdout_dropped), (done.stderr, done.stderr_dropped)):
        # A character has at most four bytes, so most outputs need no encoding to be measured.
        if dropped or (len(text) * 4 > limit and len(text.encode()) > limit):
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text[:limit]
            )
