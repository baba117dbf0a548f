"""Read the declared databases out of the sandbox, from one instant."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
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


async def query_state(box: Box, state: SqliteState) -> EnvState:
    """Return every row of every declared database that exists.

    Raises:
        EnvironmentError_: A file is refused, damaged or too big.
    """
    existing = await state.examine()
    with tempfile.TemporaryDirectory(prefix="benchflow-state-") as folder:
        copies = await _copies(box.sandbox, state, existing, Path(folder))
        databases: dict[str, Mapping[str, TableState]] = {}
        for path, copy in copies.items():
            databases[path] = await asyncio.to_thread(read_database, copy, path)
    return EnvState(databases=databases)


async def _copies(
    sandbox: Sandbox, state: SqliteState, existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    """Copy files and logs while nothing runs, or ask SQLite for copies."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(sandbox.freeze())
        except SandboxUnsupportedError:
            pass
        else:
            return await _frozen_copies(sandbox, state.paths, existing, folder)
    return await _captured_copies(sandbox, state, existing, folder)


async def _frozen_copies(
    sandbox: Sandbox, paths: Sequence[str], existing: frozenset[str], folder: Path
) -> Mapping[str, Path]:
    copies: dict[str, Path] = {}
    for index, path in enumerate(paths):
        target = folder / f"{index}.db"
        if not await _fetch(sandbox, path, target, existing):
            continue
        copies[path] = target
        # The shared-memory index is rebuilt from the log; a journal undoes a commit
        # that the freeze cut in two.
        for suffix in ("-wal", "-journal"):
            await _fetch(sandbox, path + suffix, Path(f"{target}{suffix}"), existing)
    return copies


async def _fetch(sandbox: Sandbox, path: str, target: Path, existing: frozenset[str]) -> bool:
    """Copy one file out; `False` when it is not there.

    Files may have come or gone since `existing` was seen, so each is asked for. A
    provider that does not say why it refused is believed unless the file was seen; a
    journal comes and goes with every commit.
    """
    try:
        await sandbox.download(path, target, max_bytes=MAX_FILE_BYTES)
    except TransferError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return False
        unsaid = exc.__cause__ is None and (path not in existing or path.endswith("-journal"))
        if not unsaid:
            raise EnvironmentError_(f"state file {path!r} cannot be read: {exc}") from exc
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
