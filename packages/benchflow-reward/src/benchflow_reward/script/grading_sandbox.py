"""A sandbox that grades: how it is made and furnished."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from benchflow_contracts import (
    BenchFlowError,
    ExecResult,
    Grading,
    HostError,
    RewardError,
    Sandbox,
    SandboxImage,
    SandboxSpec,
    SandboxTimeoutError,
    SupportsServices,
    expect_host,
)

from .grading_protocol import LiveNode
from .grading_spec import grading_environment, grading_spec

_COMMAND_SEC = 60
"""For a command that takes a moment."""


@asynccontextmanager
async def grading_sandbox(
    live: LiveNode, spec: SandboxSpec, image: SandboxImage | None = None
) -> AsyncGenerator[Sandbox, None]:
    """Make a sandbox without any agent's files, or one from `image`.

    It is deleted at the end of the block, also after an error.

    Raises:
        HostError: The host failed processes of the sandbox, so what they left counts for nothing.
    """
    sandbox = await live.provider.create(spec, image=image, identity=live.identity)
    try:
        with checked_host(sandbox):
            yield sandbox
    finally:
        await sandbox.teardown()


@contextmanager
def checked_host(sandbox: Sandbox) -> Generator[None]:
    """Raise `HostError` after a block in which the host failed processes of `sandbox`."""
    try:
        yield
    except BenchFlowError as error:
        try:
            expect_host(sandbox)
        except HostError as short:
            raise short from error
        raise
    expect_host(sandbox)


def has_services(sandbox: Sandbox) -> bool:
    """Whether a sandbox has parts that its snapshots lack."""
    return bool(sandbox.spec.services or sandbox.spec.container.volumes)


@asynccontextmanager
async def replaced_sandbox(
    live: LiveNode, spec: SandboxSpec, image: SandboxImage
) -> AsyncGenerator[Sandbox, None]:
    """Make a sandbox from `image` in the place of the agent's, beside the services.

    Raises:
        RewardError: The agent's sandbox cannot be replaced.
    """
    if not isinstance(live.sandbox, SupportsServices):
        raise RewardError(f"nothing can stand in for {live.sandbox.id!r} beside its services")
    async with live.sandbox.replace_main(image, spec, identity=live.identity) as sandbox:
        with checked_host(sandbox):
            yield sandbox


async def set_up_task(sandbox: Sandbox, live: LiveNode, grading: Grading) -> None:
    """Set the task's world up as it was before the agent: files, then commands.

    A sandbox of another image than the agent's gets the commands of its own environment alone.
    They are the task's and nothing of the agent is here yet, so they have the variables that
    they had in the agent's sandbox.

    Raises:
        RewardError: A setup command failed.
    """
    task = live.task
    own = grading_environment(task, grading)
    made = live.grading_spec if own is None else grading_spec(live, grading)
    if (made.image, made.recipe) == (live.grading_spec.image, live.grading_spec.recipe):
        if task.parts.files is not None:
            await sandbox.upload(task.parts.files, "/")
        if task.parts.workdir_files is not None:
            await sandbox.upload(
                task.parts.workdir_files, sandbox.spec.workdir, user=sandbox.spec.user
            )
    for setup in (own or task.config.environment).setup_commands:
        result = await sandbox.exec(
            setup.command,
            user=setup.user or None,
            timeout=setup.timeout_sec,
            cwd=setup.cwd,
            env={**made.env, **setup.env},
        )
        if not result.ok:
            raise RewardError(
                f"setup command {setup.command!r} failed in the grading sandbox with exit code "
                f"{result.exit_code}: {result.stderr[-500:]}",
                caused_by="inside",
            )


async def run_checked(sandbox: Sandbox, cmd: Sequence[str]) -> ExecResult:
    """Run a command of ours as root. Raises `RewardError` when it fails."""
    try:
        result = await sandbox.exec(cmd, user="root", cwd="/", timeout=_COMMAND_SEC)
    except SandboxTimeoutError as error:
        # Such as a pipe where the command reads the users.
        by = "inside" if error.caused_by == "unknown" else error.caused_by
        raise RewardError(
            f"the grading sandbox could not be prepared in {_COMMAND_SEC} s", caused_by=by
        ) from error
    if not result.ok:
        raise RewardError(
            f"the grading sandbox could not be prepared: exit code {result.exit_code}: "
            f"{result.stderr[-500:]}",
            caused_by="inside",
        )
    return result
