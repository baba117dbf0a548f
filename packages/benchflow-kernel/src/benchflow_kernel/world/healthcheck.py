"""A healthcheck: a command that says when a box is ready."""

import asyncio

from benchflow_contracts import Healthcheck, ReadinessError, Sandbox, SandboxTimeoutError

_OUTPUT_TAIL = 400
"""Characters of the last failed try's output that the error shows."""


async def wait_healthy(sandbox: Sandbox, check: Healthcheck, *, where: str) -> None:
    """Run the command as the box's user until it succeeds.

    As a HEALTHCHECK of Docker, and Harbor 0.24: failures within the start period do not
    count, and a try that takes too long is a failure.

    Raises:
        ReadinessError: It failed `retries` times in a row; `where` names the check.
    """
    clock = asyncio.get_running_loop().time
    start_ends = clock() + check.start_period_sec
    failures = 0
    while True:
        starting = clock() < start_ends
        said = await _failure(sandbox, check)
        if said is None:
            return
        failures += not starting
        if failures >= check.retries:
            raise ReadinessError(
                f"the healthcheck failed {failures} times in a row: {said}",
                where=where,
                hint="run its command in the box; give what starts slowly a start_period_sec",
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def _failure(sandbox: Sandbox, check: Healthcheck) -> str | None:
    try:
        result = await sandbox.exec(check.command, timeout=check.timeout_sec)
    except SandboxTimeoutError:
        return f"no answer within {check.timeout_sec:g} s"
    if result.ok:
        return None
    output = (result.stderr or result.stdout).strip()[-_OUTPUT_TAIL:]
    return f"exit code {result.exit_code}: {output}"
