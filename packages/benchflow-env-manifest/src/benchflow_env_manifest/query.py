"""Read the declared databases out of the sandbox, from one instant."""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    Sandbox,
    SandboxUnsupportedError,
    TableState,
    TransferError,
)

from .box import Box
from .database import read_database
from .state import ROOT, SqliteState

MAX_FILE_BYTES = 1 << 30
"""The size of one database file or log beyond which `query` refuses."""

_ATTEMPTS = 3


class _LogVanishedError(Exception):
    """A log that was there before the freeze is not, or cannot be copied."""


async def query_state(box: Box, state: SqliteState) -> EnvState:
    """Return every row of every declared database that exists.

    Raises:
        EnvironmentError_: A file is refused, damaged or too big.
    """
    with tempfile.TemporaryDirectory(prefix="benchflow-state-") as folder:
        for attempt in range(_ATTEMPTS):
            existing = await state.existing()
            target = Path(folder) / str(attempt)
            target.mkdir()
            try:
                copies = await _copies(box, state, existing, target)
            except _LogVanishedError:
                continue
            databases: dict[str, Mapping[str, TableState]] = {}
            for path, copy in copies.items():
                databases[path] = await asyncio.to_thread(read_database, copy, path)
            return EnvState(databases=databases)
    raise EnvironmentError_(
        f"the write-ahead logs of {', '.join(state.paths)} cannot be read",
        hint=f"each has to stay below {MAX_FILE_BYTES} bytes",
    )


async def _copies(
    box: Box, state: SqliteState, existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    """Copy files and logs while nothing runs, or ask SQLite for copies."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(box.sandbox.freeze())
        except SandboxUnsupportedError:
            pass
        else:
            return await _frozen_copies(box.sandbox, state, existing, folder)
    return await _captured_copies(box.sandbox, state, existing, folder)


async def _frozen_copies(
    sandbox: Sandbox, state: SqliteState, existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    copies: dict[str, Path] = {}
    for index, path in enumerate(state.paths):
        if path not in existing:
            continue
        target = copies[path] = folder / f"{index}.db"
        await sandbox.download(path, target, max_bytes=MAX_FILE_BYTES)
        # The shared-memory index is rebuilt from the log. A journal undoes a commit
        # that the freeze cut in two; it comes and goes with every commit.
        log, journal = path + "-wal", path + "-journal"
        if not await _fetch(sandbox, log, Path(f"{target}-wal")) and log in existing:
            raise _LogVanishedError
        await _fetch(sandbox, journal, Path(f"{target}-journal"))
    return copies


async def _fetch(sandbox: Sandbox, path: str, target: Path) -> bool:
    """Copy one file out; `False` when it is not there."""
    try:
        await sandbox.download(path, target, max_bytes=MAX_FILE_BYTES)
    except TransferError:
        return False
    return True


async def _captured_copies(
    sandbox: Sandbox, state: SqliteState, existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    snap = await state.snapshot()
    try:
        copies: dict[str, Path] = {}
        for index, path in enumerate(state.paths):
            if path in existing:
                copies[path] = folder / f"{index}.db"
                await sandbox.download(
                    f"{ROOT}/{snap.id}/{index}.db", copies[path], max_bytes=MAX_FILE_BYTES
                )
    finally:
        await state.forget(snap.path)
    return copies
