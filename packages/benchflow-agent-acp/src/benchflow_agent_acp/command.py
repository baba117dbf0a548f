"""Run a program of the host."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

from benchflow_contracts import AgentError

_TAIL_CHARS = 1500


async def run_tool(*argv: str, timeout: float, env: Mapping[str, str] | None = None) -> str:
    """Run a program of the host; return its stdout.

    The whole process group of the program is dead when this returns or raises.

    Raises:
        AgentError: The program is missing, failed, or did not end in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise AgentError(f"cannot run {argv[0]!r}: {error}") from error
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise AgentError(f"{argv[0]!r} did not end within {timeout:g} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        tail = err.decode("utf-8", "replace")[-_TAIL_CHARS:].strip()
        raise AgentError(f"{' '.join(argv[:3])!r} failed ({process.returncode}): {tail}")
    return out.decode("utf-8", "replace")
