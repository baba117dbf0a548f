"""Regular expressions over hostile text, in a process that can be killed."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import RewardError

TIMEOUT_SEC = 10.0
_CHILD = Path(__file__).parent / "_matcher_child.py"


async def search(pattern: str, texts: Sequence[str], *, ignore_case: bool = False) -> list[bool]:
    """Return for each text whether `pattern` is found in it (`re.search`, multiline).

    The search runs in a child process: some pairs of pattern and text never end, the
    text is the agent's, and `re` would block the whole engine.

    Raises:
        RewardError: The pattern is malformed, or took longer than 10 seconds.
    """
    if not texts:
        return []
    check_pattern(pattern)
    job = {"pattern": pattern, "ignore_case": ignore_case, "texts": list(texts)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_CHILD)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        async with asyncio.timeout(TIMEOUT_SEC):
            out, _ = await process.communicate(json.dumps(job).encode("ascii"))
    except TimeoutError as error:
        raise RewardError(
            f"the pattern {pattern!r} took longer than {TIMEOUT_SEC:g} s",
            hint="write the pattern without nested repetition",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RewardError(f"the search for {pattern!r} failed: exit code {process.returncode}")
    return [bool(found) for found in json.loads(out)]


def check_pattern(pattern: str) -> None:
    """Raise `RewardError` when `pattern` is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise RewardError(f"{pattern!r} is not a regular expression: {error}") from error
