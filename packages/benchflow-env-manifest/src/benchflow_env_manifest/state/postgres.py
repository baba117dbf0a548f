"""A database of a PostgreSQL server."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, Process, SandboxError

from benchflow_env_manifest.box import Box, tail_of
from benchflow_env_manifest.state_tables import PostgresTable

from .backend import StateBackend
from .postgres_sql import HOLD, READ, RESTORE
from .spool import free_path, take_rows, tree_digest, verify

_SEC = 600
_HOLD_SEC = 60
_ATTEMPTS = 5


class PostgresState(StateBackend):
    """One database, through `psql` and `pg_dump`; no connection is dropped.

    While it is held, a session of ours has every table locked against writers. A copy is
    a dump from one snapshot of the database; it is put back in one transaction that
    drops and makes all schemas, so that sessions see it with their next statement.
    """

    online = True

    def __init__(self, box: Box, table: PostgresTable) -> None:
        self._box = box
        self._table = table
        self.name = table.name
        self.label = f"postgres {table.name!r}"
        self.trees = (table.data,) if table.data else ()
        at = ["-h", table.host, "-p", str(table.port), "-U", table.user, "-d", table.database]
        self._psql = ["psql", *at, "-XqAt", "-v", "ON_ERROR_STOP=1"]
        self._dump = ["pg_dump", *at]
        self._env = {"PGPASSWORD": table.password, "PGCONNECT_TIMEOUT": "30"}

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Lock every table against writers; all commits so far are in the log on disk."""
        del persist
        holder = await self._box.sandbox.spawn(
            self._psql, user="root", cwd="/", env={**self._env, "PGAPPNAME": "benchflow-hold"}
        )
        try:
            await self._lock(holder)
            self.holder = holder.id
            yield
        finally:
            self.holder = ""
            await holder.aclose()

    async def capture(self, directory: str) -> str:
        """Dump the database while its sessions go on."""
        await self._box.must(["mkdir", "-m", "700", directory], what="making a directory")
        await self._sh(self._dump, f"{directory}/dump.sql", "dump")
        return await tree_digest(self._box, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Replace all schemas in one transaction; tried again after a deadlock."""
        await verify(self._box, directory, digest)
        await self._sql(RESTORE.format(dump=f"{directory}/dump.sql"), "restore", _ATTEMPTS)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return every row of every table, by its name with the schema's."""
        del still
        spool = free_path()
        await self._sh(self._psql, spool, "reading", stdin=READ.encode())
        tables = await take_rows(self._box, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    def holds(self, state: str) -> bool:
        """Whether `state` is its name."""
        return state == self._table.name

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Return the first line of what each query prints."""
        del folder, still
        answers: dict[str, object] = {}
        for name, (_, sql) in queries.items():
            said = await self._sql(f"BEGIN READ ONLY;\n{sql}\n;ROLLBACK;\n", f"invariant {name!r}")
            answers[name] = said.splitlines()[0] if said.strip() else ""
        return answers

    async def check(self, folder: Path, *, still: bool) -> None:
        """Ask whether it answers."""
        del folder, still
        await self._sql("SELECT 1;", "check")

    async def let_go(self, holder: str) -> None:
        """End the session that a live image carried, and with it its locks."""
        if holder:
            await (await self._box.sandbox.attach(holder)).aclose()

    async def _lock(self, holder: Process) -> None:
        said = ""
        try:
            async with asyncio.timeout(_HOLD_SEC):
                await holder.stdin.write(HOLD.encode())
                while "held" not in said:
                    data = await holder.stdout.read()
                    if not data:
                        said = (await holder.stderr.read()).decode("utf-8", "replace")
                        break
                    said += data.decode("utf-8", "replace")
        except (SandboxError, TimeoutError) as exc:
            said = f"{type(exc).__name__}: {exc}"
        if "held" not in said:
            raise EnvironmentError_(
                f"{self.label} did not come to rest: {said.strip()[-500:]}",
                hint="a session keeps a transaction open, or may not lock the tables",
                retryable=True,
            )

    async def _sql(self, script: str, what: str, attempts: int = 1) -> str:
        for left in reversed(range(attempts)):
            result = await self._box.run(
                self._psql, timeout=_SEC, stdin=script.encode(), env=self._env
            )
            if result.ok:
                return result.stdout
            if not left or "deadlock" not in result.stderr:
                raise self._error(what, tail_of(result))
        raise AssertionError("the loop returns or raises")

    async def _sh(self, command: Sequence[str], target: str, what: str, stdin: bytes = b"") -> None:
        script = 'umask 077; out=$1; shift; exec "$@" > "$out"'
        words = ["sh", "-c", script, "sh", target, *command]
        result = await self._box.run(words, timeout=_SEC, stdin=stdin, env=self._env)
        if not result.ok:
            raise self._error(what, tail_of(result))

    def _error(self, what: str, said: str) -> EnvironmentError_:
        return EnvironmentError_(
            f"{what} of {self.label} failed: {said}",
            hint="check `host`, `port`, `user`, `database` of this [[environment.state]]",
        )
