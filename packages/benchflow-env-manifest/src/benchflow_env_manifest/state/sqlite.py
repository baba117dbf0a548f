"""Copy and restore SQLite databases."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    SandboxUnsupportedError,
    SupportsFileDigests,
    TableState,
    TransferError,
)

from benchflow_env_manifest.database import (
    FILES,
    ask_database,
    digest_of,
    known_reading,
    read_database,
)
from benchflow_env_manifest.guard import Guard
from benchflow_env_manifest.sandbox_shell import SandboxShell

from .backend import ROOT, StateBackend
from .cli_backup import CliBackup
from .copies import MAX_FILE_BYTES, captured_copies, frozen_copies

_LOCK_SEC = 60
# A failed restore copies everything back before it ends; it must not be interrupted.
_TOTAL_SEC = 10 * _LOCK_SEC


class PythonBackup:
    """SQLite's online backup. All databases are captured at one instant."""

    def __init__(self, shell: SandboxShell) -> None:
        self._shell = shell

    async def capture(self, paths: Sequence[str], directory: str) -> str:
        """Copy into the new `directory`; return the digest of the contents."""
        answer = await self._ask({"do": "capture", "paths": paths, "directory": directory})
        return answer["digest"]

    async def restore(self, paths: Sequence[str], directory: str, digest: str, safety: str) -> None:
        """Restore `directory` if it still has `digest`; `safety` is an unused path."""
        request = {"do": "restore", "paths": paths, "directory": directory}
        await self._ask({**request, "digest": digest, "safety": safety})

    async def _ask(self, request: Mapping[str, Any]) -> Mapping[str, str]:
        answer = await self._shell.python(
            ["tables", "backup"], {**request, "timeout": _LOCK_SEC}, timeout=_TOTAL_SEC
        )
        if "error" in answer:
            raise EnvironmentError_(
                f"{request['do']} of {', '.join(request['paths'])} failed: {answer['error']}",
                hint="a service may hold a lock, or the disk of the sandbox may be full",
            )
        return answer


class SqliteState(StateBackend):
    """The declared databases, copied by SQLite itself while services use them.

    The files are complete at every instant: a crash, and so a freeze, loses no commit.
    """

    label = "sqlite"
    reading_proves = True

    def __init__(self, shell: SandboxShell, guard: Guard, paths: Sequence[str]) -> None:
        self._shell = shell
        self._guard = guard
        self.files = tuple(paths)

    async def capture(self, directory: str) -> str:
        """Copy all databases, from one instant where the sandbox has Python."""
        try:
            return await (await self._tool()).capture(self.files, directory)
        except BaseException:
            await self._forget(f"{directory}.partial")
            raise

    async def restore(self, directory: str, digest: str) -> None:
        """Write a copy into the live databases; services see it with their next statement."""
        safety = f"{ROOT}/{uuid4().hex}"
        try:
            await (await self._tool()).restore(self.files, directory, digest, safety)
        finally:
            await self._forget(f"{safety}.partial", safety)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return every row of every database that exists."""
        return await (await self.copy(folder, still=still))()

    async def copy(self, folder: Path, *, still: bool) -> Callable[[], Awaitable[EnvState]]:
        """Copy every database; digest and parse the copies later, which takes longer."""
        return partial(_read, await self._copies(folder, still=still))

    async def read_cached(self) -> EnvState | None:
        """Return cached contents of the databases, by the digests of their files."""
        sandbox = self._shell.sandbox
        if not isinstance(sandbox, SupportsFileDigests):
            return None
        paths = [path + suffix for path in self.files for suffix in FILES]
        try:
            digests = await sandbox.file_digests(paths, max_bytes=MAX_FILE_BYTES)
        except (TransferError, SandboxUnsupportedError):
            return None
        databases: dict[str, Mapping[str, TableState]] = {}
        for path in self.files:
            own = {suffix: digests[path + suffix] for suffix in FILES if path + suffix in digests}
            if "" not in own:
                if own:
                    return None
                continue
            if (tables := known_reading(digest_of(own))) is None:
                return None
            databases[path] = tables
        return EnvState(databases=databases)

    def answers_about(self, state: str) -> bool:
        """Return whether `state` is one of the databases."""
        return state in self.files

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Run each query on a copy of its database."""
        copies = await self._copies(folder, still=still)
        answers: dict[str, object] = {}
        for name, (path, sql) in queries.items():
            if path not in copies:
                raise EnvironmentError_(f"invariant {name!r}: {path!r} does not exist")
            answers[name] = await asyncio.to_thread(ask_database, copies[path], path, sql)
        return answers

    async def check(self, folder: Path, *, still: bool) -> None:
        """Check every page of a copy, and read every row."""
        await self.read(folder, still=still)

    async def _copies(self, folder: Path, *, still: bool) -> Mapping[str, Path]:
        existing = await self._guard.examine()
        sandbox = self._shell.sandbox
        if still:
            return await frozen_copies(sandbox, self.files, existing, folder)
        directory = f"{ROOT}/{uuid4().hex}"
        try:
            await self.capture(directory)
            return await captured_copies(sandbox, self.files, existing, directory, folder)
        finally:
            await self._forget(directory)

    async def _forget(self, *directories: str) -> None:
        await self._shell.must(["rm", "-rf", *directories], what="removing captured files")

    async def _tool(self) -> PythonBackup | CliBackup:
        tools = await self._shell.tools()
        if "python3-sqlite" in tools:
            return PythonBackup(self._shell)
        if "sqlite3" in tools:
            return CliBackup(self._shell)
        raise EnvironmentError_(
            "the sandbox has neither python3 with its sqlite3 module nor the sqlite3 program",
            hint="add one of them to the image, or remove [environment.state]",
        )


async def _read(copies: Mapping[str, Path]) -> EnvState:
    databases: dict[str, Mapping[str, TableState]] = {}
    for path, copy in copies.items():
        databases[path] = await asyncio.to_thread(read_database, copy, path)
    return EnvState(databases=databases)
