"""Protect the world's files from the agent."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from .sandbox_shell import SandboxShell

_MAKE_FOLDERS = 'umask 077; for path in "$@"; do mkdir -p "${path%/*}/" || exit 1; done'

_CLOSE_FILES = """
for path in "$@"; do
  if [ -d "$path" ]; then chmod go-rwx "$path" || exit 1
  elif [ -e "$path" ]; then chmod 0600 "$path" || exit 1; fi
done
"""

# With an empty IFS, an unquoted pattern is expanded to paths and not split.
_HIDE = """
IFS=
for pattern in "$@"; do
  for path in $pattern; do
    if [ -L "$path" ]; then echo "$path is a link: name its target" >&2; exit 1; fi
    if [ -e "$path" ]; then chown root:root "$path" && chmod go-rwx "$path" || exit 1; fi
  done
done
"""


async def make_state_folders(shell: SandboxShell, paths: Sequence[str]) -> None:
    """Create missing directories of state files, for root only."""
    if paths:
        await shell.must(
            ["sh", "-c", _MAKE_FOLDERS, "sh", *paths], what="creating state directories"
        )


async def close_state_files(shell: SandboxShell, files: Sequence[str]) -> None:
    """Make state readable by its owner only; SQLite gives its new side files the same mode."""
    if files:
        await shell.must(["sh", "-c", _CLOSE_FILES, "sh", *files], what="closing the state files")


async def hide(shell: SandboxShell, patterns: Sequence[str]) -> None:
    """Make matching files readable by root only. A directory hides everything below it.

    A relative pattern starts at the sandbox's working directory. This is
    only safe before the agent runs: later, a match may be a trap of the agent.
    """
    if patterns:
        workdir = PurePosixPath(shell.sandbox.spec.workdir)
        absolute = [str(workdir / pattern) for pattern in patterns]
        await shell.must(["sh", "-c", _HIDE, "sh", *absolute], what="hiding files from the agent")
