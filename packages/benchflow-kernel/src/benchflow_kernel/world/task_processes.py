"""The task's processes in its sandbox: setup commands, the healthcheck and the services."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    Environment,
    ExecResult,
    Healthcheck,
    ReadinessError,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
    SetupCommand,
    SupportsServices,
)
from benchflow_contracts.redaction import redactor

from benchflow_kernel.errors import SetupError
from benchflow_kernel.faults import boundary, within

_OUTPUT_TAIL = 400
"""Characters of a failed command's output that its error shows."""

_MAX_BYTES: Final = 1 << 20


async def wait_healthy(sandbox: Sandbox, check: Healthcheck, *, where: str) -> None:
    """Run the command as the sandbox's default user until it succeeds.

    The rules are those of Docker's HEALTHCHECK and of Harbor 0.24: failures within the start
    period do not count, and a try without a result in time is a failure.

    Raises:
        ReadinessError: The command failed `retries` times in a row; `where` names the check.
    """
    clock = asyncio.get_running_loop().time
    start_ends = clock() + check.start_period_sec
    failures = 0
    while True:
        starting = clock() < start_ends
        failure = await _check_once(sandbox, check)
        if failure is None:
            return
        failures += not starting
        if failures >= check.retries:
            raise ReadinessError(
                f"the healthcheck failed {failures} times in a row: {failure}",
                where=where,
                hint="run its command in the sandbox; set start_period_sec for a slow start",
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def run_setup(sandbox: Sandbox, commands: Sequence[SetupCommand], *, where: str) -> None:
    """Run each command to its end, in order.

    Raises:
        SetupError: A command did not exit with 0, or exceeded its time. `where` and the
            command's number name it.
        SandboxError: A command cannot be run.
    """
    for index, command in enumerate(commands):
        result = await _run_command(sandbox, command, f"{where}.{index}")
        if not result.ok:
            raise SetupError(
                f"setup command exited with {result.exit_code}: {_tail(result)}",
                where=f"{where}.{index}",
            )


async def _check_once(sandbox: Sandbox, check: Healthcheck) -> str | None:
    """Run the healthcheck once and return why it failed, or `None`."""
    try:
        result = await sandbox.exec(check.command, timeout=check.timeout_sec)
    except SandboxTimeoutError:
        return f"no result within {check.timeout_sec:g} s"
    return None if result.ok else f"exit code {result.exit_code}: {_tail(result)}"


async def _run_command(sandbox: Sandbox, command: SetupCommand, where: str) -> ExecResult:
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
            raise  # The sandbox did not respond, so the command is not at fault.
        raise SetupError(
            f"setup command did not end within {command.timeout_sec:g} s",
            where=where,
            hint="find the cause of the delay, or raise the command's timeout_sec",
        ) from error


def _tail(result: ExecResult) -> str:
    return (result.stderr or result.stdout).strip()[-_OUTPUT_TAIL:]


async def write_service_logs(sandbox: Sandbox, directory: Path) -> None:
    """Write the end of each service's output to `NAME.txt` in `directory`.

    The file of a service that no longer answers stays as it is.
    """
    if not isinstance(sandbox, SupportsServices):
        return
    for service in sandbox.spec.services:
        with suppress(SandboxError):
            output = await sandbox.service_logs(service.name, max_bytes=_MAX_BYTES)
            await asyncio.to_thread(_write, directory / f"{service.name}.txt", output)


def _write(path: Path, output: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(redactor().data(output))


async def wait_ready(environment: Environment, seconds: float) -> None:
    """Wait for the readiness gate of an environment.

    Raises:
        ReadinessError: The environment is not ready.
    """
    async with within(seconds, "environment", "the readiness gate"):
        probe = await environment.readiness()
    if probe.ready:
        return
    failed = [name for name, answered in probe.checked.items() if not answered]
    raise ReadinessError(
        f"environment {environment.name!r} is not ready after"
        f" {probe.waited_sec:g} s: {probe.error or 'no answer'}"
        + (f" ({', '.join(failed)})" if failed else "")
    )
