"""Setup commands: what a task runs in its box before an agent comes."""

from collections.abc import Sequence

from benchflow_contracts import Sandbox, SetupCommand, SetupError

from benchflow_kernel.faults import boundary

_OUTPUT_TAIL = 400
"""Characters of a failed command's output that its error shows."""


async def run_setup(sandbox: Sandbox, commands: Sequence[SetupCommand], *, where: str) -> None:
    """Run each command to its end, in order.

    Raises:
        SetupError: One did not exit with 0; `where` and its number name it.
        SandboxError: One cannot be run, or ran out of its time.
    """
    for index, command in enumerate(commands):
        with boundary("sandbox"):
            result = await sandbox.exec(
                command.command,
                user=command.user or None,
                timeout=command.timeout_sec,
                cwd=command.cwd,
                env=command.env,
            )
        if not result.ok:
            said = (result.stderr or result.stdout).strip()[-_OUTPUT_TAIL:]
            raise SetupError(
                f"setup command exited with {result.exit_code}: {said}",
                where=f"{where}.{index}",
            )
