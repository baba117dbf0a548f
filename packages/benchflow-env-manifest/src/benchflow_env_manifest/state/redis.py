"""A Redis server."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, SandboxError

from benchflow_env_manifest.box import Box
from benchflow_env_manifest.state_tables import RedisTable

from .spool import free_path, take_rows, tree_digest, verify

_WAIT_SEC = 60
_SEC = 600


class RedisState:
    """Everything in a server, over its own protocol; no connection is dropped.

    While it is held, `CLIENT PAUSE` lets writers wait. A copy is made of `DUMP`s and
    put back in one transaction. For a fork of the files, the append-only file or a
    `SAVE` makes them complete.
    """

    online = True
    files: tuple[str, ...] = ()

    def __init__(self, box: Box, table: RedisTable) -> None:
        self._box = box
        self._table = table
        self.label = f"redis {table.name!r}"
        self.trees = (table.data,) if table.data else ()

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Let writers wait, at most for a minute of the server's clock."""
        await self._ask("persist" if persist else "hold")
        try:
            yield
        finally:
            await self._release()

    async def capture(self, directory: str) -> str:
        """Copy every key of every database."""
        await self._box.must(["mkdir", "-m", "700", directory], what="making a directory")
        await self._ask("capture", f"{directory}/keys")
        return await tree_digest(self._box, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Replace all keys in one transaction."""
        await verify(self._box, directory, digest)
        await self._ask("restore", f"{directory}/keys")

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return one table per database: key, type, value as JSON, and expiry."""
        del still
        spool = free_path()
        await self._ask("read", spool)
        tables = await take_rows(self._box, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    def holds(self, state: str) -> bool:
        """Answer no: it knows no SQL."""
        del state
        return False

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Answer nothing."""
        del queries, folder, still
        return {}

    async def check(self, folder: Path, *, still: bool) -> None:
        """Ask whether it answers."""
        del folder, still
        await self._ask("check")

    async def adopt(self, *, live: bool) -> None:
        """End the pause that a live image carried."""
        if live:
            await self._release()

    async def _release(self) -> None:
        try:
            await self._ask("release")
        except (EnvironmentError_, SandboxError):
            return  # the pause ends by itself

    async def _ask(self, do: str, path: str = "") -> None:
        request = {"do": do, "path": path, "port": self._table.port}
        request |= {"password": self._table.password, "timeout": _WAIT_SEC}
        answer = await self._box.python(["redis"], request, timeout=_SEC)
        if "error" in answer:
            raise EnvironmentError_(
                f"{do} of {self.label} failed: {answer['error']}",
                hint="check `port` and `password` of this [[environment.state]]",
                retryable=do in ("hold", "persist"),
            )
