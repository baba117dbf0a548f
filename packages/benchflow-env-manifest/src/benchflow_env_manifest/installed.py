"""Find the services that an image has."""

import asyncio
import re
import shlex
from collections.abc import Iterator, Sequence

from benchflow_contracts import SandboxTimeoutError

from .manifest import Service
from .sandbox_shell import SandboxShell, tail_of

_PROBE = 'command -v "$1" >/dev/null 2>&1 || exit 127; exec "$@" --help'
_FIND = 'command -v "$1" >/dev/null 2>&1 || exit 127'
_HELP_SEC = 10

_PYTHON = re.compile(r"(.*/)?python[0-9.]*$")
_SHELL = re.compile(r"(.*/)?(ba|da|a|z|k)?sh$")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_ABSENT = re.compile(r"No module named|can't open file")


async def missing_services(shell: SandboxShell, services: Sequence[Service]) -> dict[str, str]:
    """Return the services whose program is not installed, each with the reason.

    Each program is started with `--help`. If it starts, it is installed, even if it rejects
    the option or still runs after 10 s.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {each.name: group.create_task(_find_reason(shell, each)) for each in services}
    reasons = {name: task.result() for name, task in tasks.items()}
    return {name: reason for name, reason in reasons.items() if reason}


async def _find_reason(shell: SandboxShell, service: Service) -> str:
    entry = entry_point(service.command)
    script = _FIND if _SHELL.match(entry[0]) else _PROBE
    try:
        result = await shell.run(["sh", "-c", script, "sh", *entry], timeout=_HELP_SEC)
    except SandboxTimeoutError:
        return ""
    if result.exit_code in (126, 127):
        return f"{entry[0]!r} is not installed"
    absent = not result.ok and _ABSENT.search(result.stderr)
    return tail_of(result) if absent else ""


def entry_point(command: str) -> list[str]:
    """Return the program of a command; for Python, also its module or script."""
    try:
        words = iter(shlex.split(command))
    except ValueError:
        # Only a shell can parse this; the shell reports errors when the service starts.
        return ["sh"]
    for word in words:
        if word not in ("exec", "env") and not _ASSIGNMENT.match(word):
            return [word, *(_python_target(words) if _PYTHON.match(word) else ())]
    return ["sh"]


def _python_target(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        if word == "-c":
            return
        yield word
        if word in ("-m", "-W", "-X"):
            yield next(words, "")
        if word == "-m" or not word.startswith("-"):
            return
