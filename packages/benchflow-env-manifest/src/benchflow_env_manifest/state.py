"""Snapshot and restore of the databases that a manifest declares."""

import re
from collections.abc import Sequence
from uuid import uuid4

from benchflow_contracts import EnvironmentError_, SandboxFrozenError, StateSnapshot

from .box import Box
from .cli_backup import CliBackup
from .guard import check_state_files
from .python_backup import PythonBackup

ROOT = "/.bf-state"
"""Only root of the sandbox can look inside."""

_ID = re.compile(r"[0-9a-f]{32}")


class SqliteState:
    """The declared databases, right also while services hold them open and write."""

    def __init__(self, box: Box, paths: Sequence[str]) -> None:
        self._box = box
        self._paths = tuple(paths)
        self._seen: frozenset[str] | None = None
        self._proven: frozenset[str] = frozenset()

    @property
    def paths(self) -> tuple[str, ...]:
        """The declared database files."""
        return self._paths

    async def existing(self) -> frozenset[str]:
        """Return which state files exist, all of them out of the agent's reach.

        While the caller holds the sandbox still, no command can look: the last proof
        stands then, since the agent can write no directory on the way. Side files come
        and go with every commit, so that only the databases are known for sure.

        Raises:
            EnvironmentError_: A file was refused, or there is no proof yet.
        """
        try:
            self._proven = await check_state_files(self._box, self._paths)
        except SandboxFrozenError:
            if not self._proven:
                raise
            return self._proven.intersection(self._paths)
        return self._proven

    async def examine(self) -> frozenset[str]:
        """Return which state files and logs exist, all out of the agent's reach.

        While the caller itself holds the sandbox still, nothing inside can be asked;
        then the answer of the last time stands. What was out of reach before the agent
        ran has stayed so.

        Raises:
            EnvironmentError_: One is within reach.
            SandboxFrozenError: The sandbox is held still and was never asked.
        """
        try:
            seen = await check_state_files(self._box, self._paths)
        except SandboxFrozenError:
            if self._seen is None:
                raise
            return self._seen
        self._seen = seen
        return seen

    async def snapshot(self) -> StateSnapshot:
        """Copy all databases into a new directory of the sandbox.

        Raises:
            EnvironmentError_: It failed; nothing is left behind.
        """
        await self.examine()
        snapshot_id = uuid4().hex
        path = f"{ROOT}/{snapshot_id}"
        try:
            digest = await (await self._tool()).capture(self._paths, path)
        except BaseException:
            await self.forget(f"{path}.partial", path)
            raise
        return StateSnapshot(id=snapshot_id, path=path, digest=digest)

    async def restore(self, snap: StateSnapshot) -> None:
        """Put a snapshot back into the live databases.

        All snapshots are checked before the first database is touched; when one cannot
        be restored, those before it get back what they held.

        Raises:
            EnvironmentError_: The snapshot is missing or not what was captured, or a
                database could not be written.
        """
        if not _ID.fullmatch(snap.id) or snap.path != f"{ROOT}/{snap.id}":
            raise EnvironmentError_(
                f"snapshot {snap.id!r} at {snap.path!r} was not made by this environment",
                hint="restore only what `snapshot` returned",
            )
        await self.examine()
        safety = f"{ROOT}/{uuid4().hex}"
        try:
            await (await self._tool()).restore(self._paths, snap.path, snap.digest, safety)
        finally:
            await self.forget(f"{safety}.partial", safety)

    async def forget(self, *directories: str) -> None:
        """Remove directories of captured files. Idempotent."""
        await self._box.must(["rm", "-rf", *directories], what="removing captured files")

    async def _tool(self) -> PythonBackup | CliBackup:
        tools = await self._box.tools()
        if "python3-sqlite" in tools:
            return PythonBackup(self._box)
        if "sqlite3" in tools:
            return CliBackup(self._box)
        raise EnvironmentError_(
            "the sandbox has neither python3 with its sqlite3 module nor the sqlite3 program",
            hint="add one of them to the image, or remove [environment.state]",
        )
