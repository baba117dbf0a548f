"""Setup commands: what a task runs in its box before an agent comes."""

from collections.abc import Sequence

from benchflow_contracts import ExecResult, Sandbox, SandboxTimeoutError, SetupCommand, SetupError

from benchflow_kernel.faults import boundary

_OUTPUT_TAIL = 400
"""Characters of a failed command's output that its error shows."""


async def run_setup(sandbox: Sandbox, commands: Sequence[SetupCommand], *, where: str) -> None:
    """Run each command to its end, in order.

    Raises:
        SetupError: One did not exit with 0, or not in its time; `where` and its number name it.
        SandboxError: One cannot be run.
    """
    for index, command in enumerate(commands):
        result = await _run(sandbox, command, f"{where}.{index}")
        if not result.ok:
            said = (result.stderr or result.stdout).strip()[-_OUTPUT_TAIL:]
            raise SetupError(
                f"setup command exited with {result.exit_code}: {said}",
                where=f"{where}.{index}",
            )


async def _run(sandbox: Sandbox, command: SetupCommand, where: str) -> ExecResult:
    try:
        with boundary("sandbox"):
            return await sandbox.exec(
                command.command,
                user=command.user or None,
                timeout=command.timeout_sec,
                cwd=command.cwd,
                env=command.env,
            )
    except SandboxTimeoutError as error:
        if error.retryable:
            raise  # the sandbox did not answer: that is not the command's fault
        raise SetupError(
            f"setup command did not end within {command.timeout_sec:g} s",
            where=where,
            hint="find out what it waits for, or raise its timeout_sec",
        ) from error
