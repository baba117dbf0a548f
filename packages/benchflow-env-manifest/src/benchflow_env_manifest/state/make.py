"""Backends of a manifest's tables."""

from collections.abc import Sequence

from benchflow_env_manifest.box import Box
from benchflow_env_manifest.guard import Guard
from benchflow_env_manifest.state_tables import (
    CommandTable,
    FilesTable,
    PostgresTable,
    ProcessTable,
    RedisTable,
    SqliteTable,
    StateTable,
)

from .backend import StateBackend
from .command import CommandState
from .files import FilesState
from .postgres import PostgresState
from .process import ProcessState
from .redis import RedisState
from .sqlite import SqliteState
from .store import StateStore


def make_store(box: Box, tables: Sequence[StateTable]) -> StateStore:
    """Return the store of everything that `tables` declare."""
    files = [path for each in tables if isinstance(each, SqliteTable) for path in each.paths]
    trees = [path for each in tables for path in _trees(each)]
    guard = Guard(box, files, trees)
    return StateStore(box, guard, [_backend(box, guard, each) for each in tables])


def _trees(table: StateTable) -> Sequence[str]:
    if isinstance(table, FilesTable):
        return table.paths
    if isinstance(table, (RedisTable, PostgresTable)) and table.data:
        return [table.data]
    return []


def _backend(box: Box, guard: Guard, table: StateTable) -> StateBackend:
    match table:
        case SqliteTable():
            return SqliteState(box, guard, table.paths)
        case FilesTable():
            return FilesState(box, guard, table.paths)
        case RedisTable():
            return RedisState(box, table)
        case PostgresTable():
            return PostgresState(box, table)
        case CommandTable():
            return CommandState(box, table)
        case ProcessTable():
            return ProcessState(table.service)
