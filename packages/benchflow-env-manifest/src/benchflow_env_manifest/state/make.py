"""Create the backends of a manifest's tables."""

from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import EnvState

from benchflow_env_manifest.guard import Guard
from benchflow_env_manifest.sandbox_shell import SandboxShell
from benchflow_env_manifest.state_tables import (
    CommandTable,
    FilesTable,
    PostgresTable,
    ProcessTable,
    RedisTable,
    SqliteTable,
    StateTable,
)

from .backend import StateBackend, refusal
from .command import CommandState
from .files import FilesState
from .postgres import PostgresState
from .redis import RedisState
from .sqlite import SqliteState
from .store import StateStore


class ProcessState(StateBackend):
    """State that cannot be copied: only a `live` checkpoint includes it."""

    def __init__(self, service: str) -> None:
        self.label = f"process {service!r}"
        self.only_live = (
            f"the state of service {service!r} is in the memory of its process: only a live fork"
            " copies it"
        )

    async def capture(self, directory: str) -> str:
        """Capture nothing: a snapshot of the other state may still be useful."""
        del directory
        return "memory"

    async def restore(self, directory: str, digest: str) -> None:
        """Refuse: memory cannot be rolled back under a running process."""
        del directory, digest
        raise refusal(self)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return an empty state."""
        del folder, still
        return EnvState()


def make_store(shell: SandboxShell, tables: Sequence[StateTable]) -> StateStore:
    """Return the store of all state in `tables`."""
    files = [path for each in tables if isinstance(each, SqliteTable) for path in each.paths]
    trees = [path for each in tables for path in _trees(each)]
    guard = Guard(shell, files, trees)
    return StateStore(shell, guard, [_backend(shell, guard, each) for each in tables])


def _trees(table: StateTable) -> Sequence[str]:
    if isinstance(table, FilesTable):
        return table.paths
    if isinstance(table, (RedisTable, PostgresTable)) and table.data:
        return [table.data]
    return []


def _backend(shell: SandboxShell, guard: Guard, table: StateTable) -> StateBackend:
    match table:
        case SqliteTable():
            return SqliteState(shell, guard, table.paths)
        case FilesTable():
            return FilesState(shell, guard, table.paths)
        case RedisTable():
            return RedisState(shell, table)
        case PostgresTable():
            return PostgresState(shell, table)
        case CommandTable():
            return CommandState(shell, table)
        case ProcessTable():
            return ProcessState(table.service)
