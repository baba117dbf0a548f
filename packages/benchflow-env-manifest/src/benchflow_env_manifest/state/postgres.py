"""A database of a PostgreSQL server."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, Process, SandboxError

from benchflow_env_manifest.sandbox_shell import SandboxShell
from benchflow_env_manifest.state_tables import PostgresTable

from .backend import StateBackend
from .postgres_session import PostgresSession
from .postgres_sql import HOLD, READ, RESTORE
from .postgres_template import PostgresTemplate
from .spool import free_path, take_rows, tree_digest, verify

_HOLD_SEC = 60
_ATTEMPTS = 5
_DUMP, _TEMPLATE = "dump.sql", "template"


class PostgresState(StateBackend):
    """One database, through `psql` and `pg_dump`.

    While it is held, a session of BenchFlow locks every table against writers. A copy is a
    dump from one snapshot of the database. One transaction restores it: it drops and creates
    all schemas, so that sessions see it with their next statement. If sessions may end, a copy
    is a closed database beside it.
    """

    online = True

    def __init__(self, shell: SandboxShell, table: PostgresTable) -> None:
        self._shell = shell
        self._table = table
        self.name = table.name
        self.label = f"postgres {table.name!r}"
        self.trees = (table.data,) if table.data else ()
        self._session = PostgresSession(shell, table)
        self._template = PostgresTemplate(shell, self._session)

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Lock every table against writers; all commits so far are in the log on disk."""
        del persist
        holder = await self._shell.sandbox.spawn(
            self._session.psql,
            user="root",
            cwd="/",
            env={**self._session.env, "PGAPPNAME": "benchflow-hold"},
        )
        try:
            await self._lock(holder)
            self.holder = holder.id
            yield
        finally:
            self.holder = ""
            await holder.aclose()

    async def capture(self, directory: str) -> str:
        """Dump the database while its sessions go on, or end them and copy its files."""
        await self._shell.must(["mkdir", "-m", "700", directory], what="making a directory")
        if self._table.sessions == "end" and await self._template.fits():
            words = ["sh", "-c", 'umask 077; printf %s "$2" > "$1"', "sh"]
            made = await self._template.make()
            what = "writing down a copy"
            await self._shell.must([*words, f"{directory}/{_TEMPLATE}", made], what=what)
        else:
            await self._session.write(self._session.pg_dump, f"{directory}/{_DUMP}", "dump")
        return await tree_digest(self._shell, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Replace all schemas in one transaction, or the database by a copy of it."""
        await verify(self._shell, directory, digest)
        if made := await self._made(directory):
            await self._template.restore(made)
        else:
            script = RESTORE.format(dump=f"{directory}/{_DUMP}")
            await self._session.run(script, "restore", _ATTEMPTS)

    async def forget(self, directory: str) -> None:
        """Drop the copy in the server."""
        if made := await self._made(directory):
            await self._template.forget(made)

    async def _made(self, directory: str) -> str:
        found = await self._shell.run(["cat", f"{directory}/{_TEMPLATE}"])
        return found.stdout if found.ok else ""

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return every row of every table, by its name with the schema's."""
        del still
        spool = free_path()
        await self._session.write(self._session.psql, spool, "reading", stdin=READ.encode())
        tables = await take_rows(self._shell, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    def holds(self, state: str) -> bool:
        """Return whether `state` is its name."""
        return state == self._table.name

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Return the first line of each query's output."""
        del folder, still
        answers: dict[str, object] = {}
        for name, (_, sql) in queries.items():
            script = f"BEGIN READ ONLY;\n{sql}\n;ROLLBACK;\n"
            said = await self._session.run(script, f"invariant {name!r}")
            answers[name] = said.splitlines()[0] if said.strip() else ""
        return answers

    async def check(self, folder: Path, *, still: bool) -> None:
        """Check that the server responds."""
        del folder, still
        await self._session.run("SELECT 1;", "check")

    async def let_go(self, holder: str) -> None:
        """End the session from a live image, and with it its locks."""
        if holder:
            await (await self._shell.sandbox.attach(holder)).aclose()

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
                f"{self.label} did not become idle: {said.strip()[-500:]}",
                hint="a session keeps a transaction open, or may not lock the tables",
                retryable=True,
            )
