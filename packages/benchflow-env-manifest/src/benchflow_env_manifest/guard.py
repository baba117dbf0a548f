"""Proof that the agent cannot touch the files that we are about to trust."""

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from benchflow_contracts import EnvironmentError_, SandboxFrozenError

from .sandbox_shell import SandboxShell

# One process whatever the number of paths: this runs for every fork. What is not there
# has no line. Who the agent is, is asked once.
_STAT = ("stat", "-c", "%f %u %g %h %n", "--")
_ID = re.compile(r"uid=(\d+)\S* gid=\S+ groups=(.*)")

_ID_SEC = 60

SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class _Agent:
    uid: int
    gids: frozenset[int]

    def may_write(self, mode: int, uid: int, gid: int) -> bool:
        if uid == self.uid or mode & stat.S_IWOTH:
            return True
        return bool(mode & stat.S_IWGRP) and gid in self.gids


class Guard:
    """Proves, again and again, that state lies out of the agent's reach.

    Refused are links and special files anywhere on the way, hard links, and any file or
    directory on the way that the agent's user owns or may write: it could put a
    database of its own there. `trees` may be directories, `files` may not. A sandbox
    whose agent is root has nothing to protect; there, only links are refused.
    """

    def __init__(
        self, shell: SandboxShell, files: Sequence[str], trees: Sequence[str] = ()
    ) -> None:
        self._shell = shell
        self._files = [path + suffix for path in files for suffix in ("", *SIDE_FILES)]
        self._trees = list(trees)
        paths = [*files, *trees]
        self._folders = sorted(
            {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        )
        self._seen: frozenset[str] | None = None

    @property
    def folders(self) -> Sequence[str]:
        """Every directory on the way."""
        return self._folders

    async def examine(self) -> frozenset[str]:
        """Return which files and trees exist, logs included, all out of reach.

        While the caller itself holds the sandbox still, nothing inside can be asked;
        then the answer of the last time stands. What was out of reach before the agent
        ran has stayed so.

        Raises:
            EnvironmentError_: Something was refused; the message names it.
            SandboxFrozenError: The sandbox is held still and was never asked.
        """
        if not self._files and not self._trees:
            return frozenset()
        try:
            self._seen = await self._look()
        except SandboxFrozenError:
            if self._seen is None:
                raise
        return self._seen

    async def _look(self) -> frozenset[str]:
        paths = [*self._folders, *self._files, *self._trees]
        who, lines = await self._stat(paths)
        user_id = _ID.match(who)
        entries = [line.split(" ", 4) for line in lines]
        known = all(len(each) == 5 and each[4] in paths for each in entries)
        if user_id is None or not known or "/" not in [each[4] for each in entries]:
            raise EnvironmentError_("the sandbox's `stat` answered something unexpected")
        self._shell.who = who
        groups = re.findall(r"(?:^|,)(\d+)", user_id.group(2))
        agent = _Agent(int(user_id.group(1)), frozenset(map(int, groups)))
        for *fields, path in entries:
            _check_entry(path, fields, agent, self._allowed(path))
        existing = {each[4] for each in entries}
        return frozenset(existing.difference(self._folders))

    async def _stat(self, paths: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return who the agent is, and a line for each path that is there."""
        who = self._shell.who
        if who is None:
            # By the user itself: without root the sandbox has one user, whatever its name is.
            answer = await self._shell.sandbox.exec(["id"], cwd="/", timeout=_ID_SEC)
            who = answer.stdout.strip()
        result = await self._shell.run([*_STAT, *paths])
        return who, result.stdout.splitlines()

    def _allowed(self, path: str) -> frozenset[int]:
        if path in self._folders:
            return frozenset({stat.S_IFDIR})
        return frozenset({stat.S_IFREG, *([stat.S_IFDIR] if path in self._trees else [])})


def _check_entry(path: str, fields: Sequence[str], agent: _Agent, allowed: frozenset[int]) -> None:
    mode, (uid, gid, links) = int(fields[0], 16), map(int, fields[1:])
    if stat.S_IFMT(mode) not in allowed:
        wanted = "regular file" if stat.S_IFREG in allowed else "directory"
        raise _refused(path, f"is not a {wanted}")
    if stat.S_ISREG(mode) and links != 1:
        raise _refused(path, "has a second hard link")
    if agent.uid != 0 and agent.may_write(mode, uid, gid):
        raise _refused(path, "can be written or replaced by the agent")


def _refused(path: str, reason: str) -> EnvironmentError_:
    return EnvironmentError_(
        f"state path {path!r} {reason}",
        hint="keep state in a directory of its own that root owns, such as /data",
    )
