"""Copy state files to the host."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow_contracts import EnvironmentError_, Sandbox, TransferError

MAX_FILE_BYTES = 1 << 30
"""The limit of one database file or log; `query` refuses a larger one."""


async def frozen_copies(
    sandbox: Sandbox, paths: Sequence[str], existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    """Copy databases and their logs while nothing inside runs."""
    copies: dict[str, Path] = {}
    for index, path in enumerate(paths):
        target = folder / f"{index}.db"
        if not await fetch(sandbox, path, target, existing):
            continue
        copies[path] = target
        # The shared-memory index is rebuilt from the log; a journal undoes a commit
        # that the freeze cut in two.
        for suffix in ("-wal", "-journal"):
            await fetch(sandbox, path + suffix, Path(f"{target}{suffix}"), existing)
    return copies


async def captured_copies(
    sandbox: Sandbox,
    paths: Sequence[str],
    existing: frozenset[str],
    directory: str,
    folder: Path,
) -> Mapping[str, Path]:
    """Copy the captured files out of `directory` of the sandbox."""
    copies: dict[str, Path] = {}
    for index, path in enumerate(paths):
        if path in existing:
            copies[path] = folder / f"{index}.db"
            remote = f"{directory}/{index}.db"
            await sandbox.download(remote, copies[path], max_bytes=MAX_FILE_BYTES)
    return copies


async def fetch(sandbox: Sandbox, path: str, target: Path, existing: frozenset[str]) -> bool:
    """Copy one file or directory out; return `False` if it is missing.

    Each path is tried, since files may appear or disappear after `existing` was read. A
    refusal counts as a missing file unless the file was seen; a journal appears and
    disappears with every commit.
    """
    try:
        await sandbox.download(path, target, max_bytes=MAX_FILE_BYTES)
    except TransferError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return False
        is_missing = exc.__cause__ is None and (path not in existing or path.endswith("-journal"))
        if not is_missing:
            raise EnvironmentError_(f"state file {path!r} cannot be read: {exc}") from exc
        return False
    return True
