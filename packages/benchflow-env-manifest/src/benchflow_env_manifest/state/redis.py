"""Copy and restore a Redis server."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, SandboxError, TableState

from benchflow_env_manifest.sandbox_shell import SandboxShell
from benchflow_env_manifest.state_tables import RedisTable

from .backend import StateBackend, Tables
from .spool import free_path, move_rows, tree_digest, verify

_WAIT_SEC = 60
_SEC = 600
_log = logging.getLogger(__name__)


class RedisState(StateBackend):
    """All databases of a server, over its own protocol; no connection is dropped.

    Within `hold`, `CLIENT PAUSE` makes writers wait. A few keys are copied by `DUMP` and
    restored in one transaction. Many keys are streamed out of the server and into it, as
    between two servers. Before a fork of the files, the append-only file or a `SAVE`
    completes them.
    """

    online = True

    def __init__(self, shell: SandboxShell, table: RedisTable) -> None:
        self._shell = shell
        self._table = table
        self.name = table.name
        self.label = f"redis {table.name!r}"
        self.trees = (table.data,) if table.data else ()

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Make writers wait; without `persist`, at most a minute by the server's clock."""
        await self._ask("persist" if persist else "hold")
        try:
            yield
        finally:
            await self._release()

    async def capture(self, directory: str) -> str:
        """Copy every key of every database."""
        await self._shell.must(["mkdir", "-m", "700", directory], what="creating a directory")
        await self._ask("capture", directory)
        return await tree_digest(self._shell, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Replace all keys at once."""
        await verify(self._shell, directory, digest)
        await self._ask("restore", directory)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return one table per database: key, type, value as JSON, and expiry."""
        del still
        spool = free_path()
        await self._ask("read", spool)
        tables = await move_rows(self._shell, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    async def check(self, folder: Path, *, still: bool) -> None:
        """Check that the server responds."""
        del folder, still
        await self._ask("check")

    async def release(self, holder: str) -> None:
        """End the pause of a live image."""
        del holder
        await self._ask("release")

    def without_expired(self, state: EnvState, at: float) -> EnvState:
        """Return `state` without the keys that expired before `at`."""
        tables = state.databases.get(self.name, {})
        rest = {name: left for name, each in tables.items() if (left := _unexpired(each, at))}
        return state.model_copy(update={"databases": {**state.databases, self.name: rest}})

    def is_unchanged(self, then: Tables, now: Tables) -> bool:
        """Return whether all keys are equal, except keys that may have expired meanwhile."""
        return _without_expiry(then) == _without_expiry(now)

    async def _release(self) -> None:
        try:
            await self._ask("release")
        except (EnvironmentError_, SandboxError) as exc:
            _log.warning("%s was not released: %s", self.label, exc)

    async def _ask(self, do: str, path: str = "") -> None:
        request = {"do": do, "path": path, "port": self._table.port}
        request |= {"password": self._table.password, "timeout": _WAIT_SEC}
        answer = await self._shell.python(["resp", "rdb", "redis"], request, timeout=_SEC)
        if "error" in answer:
            raise EnvironmentError_(
                f"{do} of {self.label} failed: {answer['error']}",
                hint="check `port` and `password` of this [[environment.state]]",
                retryable=do in ("hold", "persist"),
            )


def _unexpired(table: TableState, at: float) -> TableState | None:
    """Return the unexpired rows of a table, or `None`. A large table has no expiry times."""
    if table.rows is None:
        return table
    rows = tuple(row for row in table.rows if row[3] is None or row[3] > at * 1000)
    left = table.model_copy(update={"rows": rows, "row_count": len(rows), "digest": ""})
    return left if rows else None


def _without_expiry(tables: Tables) -> dict[str, object]:
    """Return the rows without an expiry; for a large table, its digest."""
    contents: dict[str, object] = {}
    for name, table in tables.items():
        if table.rows is None:
            contents[name] = table.digest
        elif rows := [row for row in table.rows if row[3] is None]:
            contents[name] = rows
    return contents
