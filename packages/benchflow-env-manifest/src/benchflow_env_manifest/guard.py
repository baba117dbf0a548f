"""Check that the agent cannot change the files of the state."""

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from benchflow_contracts import EnvironmentError_, SandboxFrozenError

from .sandbox_shell import SandboxShell

# One process for all paths, because this runs for every fork. There is no line for a missing path.
# The agent's user is looked up once.
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
    """Checks repeatedly that the agent cannot change the state.

    It refuses links and special files in any path, hard links, and any file or directory in a
    path that the agent's user owns or may write: the agent could put another database there.
    `trees` may be directories, `files` may not. If the agent is root, nothing can be protected;
    then only links are refused.
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
        """Every directory in a path."""
        return self._folders

    async def examine(self) -> frozenset[str]:
        """Return the existing files and trees, including logs, after the check.

        While the caller has frozen the sandbox, no command can run; then the last result is
        used. A path that the agent could not change before it ran stays protected.

        Raises:
            EnvironmentError_: A path was refused; the message names it.
            SandboxFrozenError: The sandbox is frozen, and there is no earlier result.
        """
        if not self._files and not self._trees:
            return frozenset()
        try:
            self._seen = await self._examine_paths()
        except SandboxFrozenError:
            if self._seen is None:
                raise
        return self._seen

    async def _examine_paths(self) -> frozenset[str]:
        paths = [*self._folders, *self._files, *self._trees]
        ids, lines = await self._stat(paths)
        user_id = _ID.match(ids)
        entries = [line.split(" ", 4) for line in lines]
        valid = all(len(entry) == 5 and entry[4] in paths for entry in entries)
        if user_id is None or not valid or "/" not in [entry[4] for entry in entries]:
            raise EnvironmentError_("the sandbox's `stat` printed an unexpected result")
        self._shell.agent_ids = ids
        groups = re.findall(r"(?:^|,)(\d+)", user_id.group(2))
        agent = _Agent(int(user_id.group(1)), frozenset(map(int, groups)))
        for *fields, path in entries:
            _check_entry(path, fields, agent, self._allowed(path))
        existing = {entry[4] for entry in entries}
        return frozenset(existing.difference(self._folders))

    async def _stat(self, paths: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return the output of `id` for the agent's user, and a line for each existing path."""
        ids = self._shell.agent_ids
        if ids is None:
            # The agent's user runs it: a sandbox without root has one user of any name.
            answer = await self._shell.sandbox.exec(["id"], cwd="/", timeout=_ID_SEC)
            ids = answer.stdout.strip()
        result = await self._shell.run([*_STAT, *paths])
        return ids, result.stdout.splitlines()

    def _allowed(self, path: str) -> frozenset[int]:
        if path in self._folders:
            return frozenset({stat.S_IFDIR})
        return frozenset({stat.S_IFREG, *([stat.S_IFDIR] if path in self._trees else [])})


def _check_entry(path: str, fields: Sequence[str], agent: _Agent, allowed: frozenset[int]) -> None:
    mode, (uid, gid, links) = int(fields[0], 16), map(int, fields[1:])
    if stat.S_IFMT(mode) not in allowed:
        expected = "regular file" if stat.S_IFREG in allowed else "directory"
        raise _refused(path, f"is not a {expected}")
    if stat.S_ISREG(mode) and links != 1:
        raise _refused(path, "has a second hard link")
    if agent.uid != 0 and agent.may_write(mode, uid, gid):
        raise _refused(path, "can be written or replaced by the agent")


def _refused(path: str, reason: str) -> EnvironmentError_:
    return EnvironmentError_(
        f"state path {path!r} {reason}",
        hint="keep state in a separate directory that root owns, such as /data",
    )
