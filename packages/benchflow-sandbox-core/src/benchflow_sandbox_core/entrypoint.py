"""The image's own entrypoint, which runs beside BenchFlow's first process."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError

from .command import SandboxCommand
from .image_config import IDLE
from .running_box import RunningBox

_SERVER_SEC = 2.0
"""Seconds for a program that may never run its arguments, such as a server."""
_SCRIPT_SEC = 60.0
"""Seconds for a script that runs its arguments at its end. The start has a deadline too."""
_PAUSE_SEC, _MAX_PAUSE_SEC = 0.02, 0.25
_MAX_PROCESSES = 20
"""Processes of one entrypoint to look at, at most."""
_SETTLED = frozenset({IDLE, IDLE[-1:], tuple(IDLE[-1].split())})
"""The arguments of the entrypoint, also as a shell executes them as its last command."""
_RUNS_ARGUMENTS = re.compile(rb"\$\{?[@*]")

Show = Callable[[str], Awaitable[bytes]]
"""Returns the content of a file inside, or `b""`."""


async def wait_until_settled(box: RunningBox, pid: int, show: Show) -> int | None:
    """Wait until the entrypoint has done its work; return its exit code if it ended.

    A script that runs its arguments has done its work when they run, in its own process or in
    a child. Another program has 2 s to do so, and may continue to run.

    Raises:
        SandboxError: The sandbox is gone.
    """
    loop = asyncio.get_running_loop()
    waiting, began, pause = loop.create_task(box.init.wait(pid)), loop.time(), _PAUSE_SEC
    try:
        while not waiting.done():
            commands = await _commands(pid, show)
            if not _SETTLED.isdisjoint(commands):
                return None
            is_script = await _runs_arguments(commands, show)
            if loop.time() - began > (_SCRIPT_SEC if is_script else _SERVER_SEC):
                return None
            await asyncio.wait([waiting], timeout=pause)
            pause = min(_MAX_PAUSE_SEC, pause * 1.5)
        return waiting.result()
    except InitError as error:
        raise SandboxError(f"the sandbox is gone: {error}") from error
    finally:
        waiting.cancel()


async def _commands(pid: int, show: Show) -> list[tuple[str, ...]]:
    """Return the command lines of a process and of its descendants, level by level."""
    commands, level = list[tuple[str, ...]](), [str(pid)]
    while level and len(commands) < _MAX_PROCESSES:
        below = list[str]()
        for number in level[:_MAX_PROCESSES]:
            line = (await show(f"/proc/{number}/cmdline")).decode("utf-8", "replace")
            commands.append(tuple(line.split("\0")[:-1]))
            below += (await show(f"/proc/{number}/task/{number}/children")).decode().split()
        level = below
    return commands


async def _runs_arguments(commands: Sequence[tuple[str, ...]], show: Show) -> bool:
    """Return whether the last process with the arguments is a script that runs its arguments."""
    lines = [line for line in commands if line[-len(IDLE) :] == IDLE and line != IDLE]
    script = lines[-1][: -len(IDLE)][-1] if lines else ""
    return script.startswith("/") and _RUNS_ARGUMENTS.search(await show(script)) is not None


def exit_error(command: SandboxCommand, code: int, output: str) -> SandboxError:
    """Return the error for an entrypoint that ended. `output` describes its output."""
    return SandboxError(
        f"the image's entrypoint {command.shown!r} ended with exit code {code}: {output}",
        hint="it must run its arguments or keep running; try `docker run IMAGE sleep infinity`",
    )
