"""Find the files that the agent's directories add to a fresh grading sandbox."""

import asyncio
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchflow_contracts import FileChanges, Sandbox
from benchflow_contracts.cause import refuse_shortage

from benchflow_reward.collect import Collected

_BATCH = 5000
_TIMEOUT_SEC = 120
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def collected_directories(taken: Iterable[Collected]) -> list[Collected]:
    """Return the artifacts that are directories with something in them."""
    found = [item for item in taken if item.local is not None and item.local.is_dir()]
    return [item for item in found if item.local is not None and any(item.local.iterdir())]


async def find_artifact_changes(
    pristine: Sandbox, directories: Sequence[Collected], told: FileChanges | None
) -> FileChanges:
    """Return how the files of copied directories differ from what a grading sandbox has there.

    Call it before the directories are placed. A file with the same bytes inside is the task's,
    and so is one of which the host says that it did not change (`told`, `None` where unknown).
    Only the copies on the host and the grading sandbox are read.
    """
    local = await asyncio.to_thread(_files, directories, told)
    there = await _digests(pristine, sorted(local))
    changed = await asyncio.to_thread(_different, {path: local[path] for path in there}, there)
    return FileChanges(
        added=tuple(sorted(local.keys() - there.keys())), changed=tuple(sorted(changed))
    )


def _files(directories: Sequence[Collected], told: FileChanges | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    refuse = partial(refuse_shortage, "read artifacts")
    for item in directories:
        assert item.local is not None
        changed = None if told is None or item.service else {*told.added, *told.changed}
        for directory, _, names in os.walk(item.local, onerror=refuse):
            for name in names:
                file = Path(directory, name)
                path = _as_text(f"{item.path.rstrip('/')}/{file.relative_to(item.local)}")
                if changed is None or path in changed:
                    found[path] = file
    return found


def _as_text(path: str) -> str:
    # As FileChanges names paths.
    return os.fsencode(path).decode("utf-8", "backslashreplace")


async def _digests(sandbox: Sandbox, paths: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that the sandbox has, but for names with odd characters."""
    # A name of the agent's could otherwise contain a line of its own.
    plain = [path for path in paths if path.isprintable() and "\\" not in path]
    found: dict[str, str] = {}
    for start in range(0, len(plain), _BATCH):
        names = "".join(f"{path}\0" for path in plain[start : start + _BATCH]).encode()
        cmd = ["xargs", "-0", "sha256sum", "--"]
        # Missing files make it fail; a sandbox without these commands has every file brought to it.
        done = await sandbox.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC, stdin=names)
        lines = filter(None, map(_LINE.fullmatch, done.stdout.splitlines()))
        found |= {match[2]: match[1] for match in lines}
    return {path: found[path] for path in plain if path in found}


def _different(local: Mapping[str, Path], there: Mapping[str, str]) -> set[str]:
    return {path for path, file in local.items() if _digest(file) != there[path]}


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
