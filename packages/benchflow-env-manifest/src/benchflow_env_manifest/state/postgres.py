"""Copy and restore a database of a PostgreSQL server."""

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
from .spool import free_path, move_rows, tree_digest, verify

_HOLD_SEC = 60
_ATTEMPTS = 5
_DUMP, _TEMPLATE = "dump.sql", "template"


class PostgresState(StateBackend):
    """One database, through `psql` and `pg_dump`.

    Within `hold`, a session of BenchFlow locks every table against writers. A copy is a
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
        """Dump the database while its sessions continue, or end them and copy its files."""
        await self._shell.must(["mkdir", "-m", "700", directory], what="creating a directory")
        if self._table.sessions == "end" and await self._template.fits():
            words = ["sh", "-c", 'umask 077; printf %s "$2" > "$1"', "sh"]
            copy = await self._template.make()
            what = "saving the name of a copy"
            await self._shell.must([*words, f"{directory}/{_TEMPLATE}", copy], what=what)
        else:
            await self._session.write(self._session.pg_dump, f"{directory}/{_DUMP}", "dump")
        return await tree_digest(self._shell, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Replace all schemas in one transaction, or the database by a copy of it."""
        await verify(self._shell, directory, digest)
        if copy := await self._find_copy(directory):
            await self._template.restore(copy)
        else:
            script = RESTORE.format(dump=f"{directory}/{_DUMP}")
            await self._session.run(script, "restore", _ATTEMPTS)

    async def forget(self, directory: str) -> None:
        """Drop the copy in the server."""
        if copy := await self._find_copy(directory):
            await self._template.forget(copy)

    async def _find_copy(self, directory: str) -> str:
        result = await self._shell.run(["cat", f"{directory}/{_TEMPLATE}"])
        return result.stdout if result.ok else ""

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return every row of every table; the name of a table includes its schema."""
        del still
        spool = free_path()
        await self._session.write(self._session.psql, spool, "reading", stdin=READ.encode())
        tables = await move_rows(self._shell, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    def answers_about(self, state: str) -> bool:
        """Return whether `state` is the name of this database."""
        return state == self._table.name

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Return the first line of each query's output."""
        del folder, still
        answers: dict[str, object] = {}
        for name, (_, sql) in queries.items():
            script = f"BEGIN READ ONLY;\n{sql}\n;ROLLBACK;\n"
            output = await self._session.run(script, f"invariant {name!r}")
            answers[name] = output.splitlines()[0] if output.strip() else ""
        return answers

    async def check(self, folder: Path, *, still: bool) -> None:
        """Check that the server responds."""
        del folder, still
        await self._session.run("SELECT 1;", "check")

    async def release(self, holder: str) -> None:
        """End the session of a live image, which releases its locks."""
        if holder:
            await (await self._shell.sandbox.attach(holder)).aclose()

    async def _lock(self, holder: Process) -> None:
        output = ""
        try:
            async with asyncio.timeout(_HOLD_SEC):
                await holder.stdin.write(HOLD.encode())
                while "locked" not in output:
                    data = await holder.stdout.read()
                    if not data:
                        output = (await holder.stderr.read()).decode("utf-8", "replace")
                        break
                    output += data.decode("utf-8", "replace")
        except (SandboxError, TimeoutError) as exc:
            output = f"{type(exc).__name__}: {exc}"
        if "locked" not in output:
            raise EnvironmentError_(
                f"{self.label} did not become idle: {output.strip()[-500:]}",
                hint="a session has an open transaction, or the user may not lock the tables",
                retryable=True,
            )
