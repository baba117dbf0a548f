"""Proof that the agent cannot touch the files that we are about to trust."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from benchflow_contracts import EnvironmentError_

from .box import Box

_STAT = """
id -u "$1" && id -G "$1" || exit 1
shift
for path in "$@"; do stat -c '%f %u %g %h' "$path" 2>/dev/null || echo -; done
"""

SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class _Agent:
    uid: int
    gids: frozenset[int]

    def may_write(self, mode: int, uid: int, gid: int) -> bool:
        if uid == self.uid or mode & stat.S_IWOTH:
            return True
        return bool(mode & stat.S_IWGRP) and gid in self.gids


async def check_state_files(box: Box, paths: Sequence[str]) -> frozenset[str]:
    """Return which of `paths` exist, all of them out of the agent's reach.

    Refused are links and special files anywhere on the way, hard links, and any file
    or directory on the way that the agent's user owns or may write: it could put a
    database of its own there. A sandbox whose agent is root has nothing to protect;
    there, only links are refused.

    Raises:
        EnvironmentError_: Something was refused; the message names it.
    """
    files = [path + suffix for path in paths for suffix in ("", *SIDE_FILES)]
    folders = sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents})
    user = box.sandbox.spec.user
    output = await box.must(
        ["sh", "-c", _STAT, "sh", user, *folders, *files], what="looking at the state files"
    )
    uid, gids, *lines = output.splitlines()
    if len(lines) != len(folders) + len(files):
        raise EnvironmentError_("the sandbox's `stat` answered something unexpected")
    agent = _Agent(int(uid), frozenset(map(int, gids.split())))
    existing: set[str] = set()
    for path, line in zip([*folders, *files], lines, strict=True):
        if line != "-":
            _check_entry(path, line, agent, folder=path in folders)
            existing.add(path)
    return frozenset(existing.intersection(files))


def _check_entry(path: str, line: str, agent: _Agent, *, folder: bool) -> None:
    fields = line.split()
    mode, (uid, gid, links) = int(fields[0], 16), map(int, fields[1:])
    if folder and not stat.S_ISDIR(mode):
        raise _refused(path, "is not a directory")
    if not folder and not stat.S_ISREG(mode):
        raise _refused(path, "is not a regular file")
    if not folder and links != 1:
        raise _refused(path, "has a second hard link")
    if agent.uid != 0 and agent.may_write(mode, uid, gid):
        raise _refused(path, "can be written or replaced by the agent")


def _refused(path: str, reason: str) -> EnvironmentError_:
    return EnvironmentError_(
        f"state path {path!r} {reason}",
        hint="keep state in a directory of its own that root owns, such as /data",
    )
