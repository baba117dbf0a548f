"""Run SQL on a PostgreSQL server, through `psql`."""

from collections.abc import Mapping, Sequence

from benchflow_contracts import EnvironmentError_, ExecResult

from benchflow_env_manifest.sandbox_shell import SandboxShell, tail_of
from benchflow_env_manifest.state_tables import PostgresTable

_SEC = 600


class PostgresSession:
    """Runs scripts, each in its own session."""

    def __init__(self, shell: SandboxShell, table: PostgresTable) -> None:
        self._shell = shell
        self._label = f"postgres {table.name!r}"
        self._address = ["-h", table.host, "-p", str(table.port), "-U", table.user]
        self.database = table.database
        self.env: Mapping[str, str] = {"PGPASSWORD": table.password, "PGCONNECT_TIMEOUT": "30"}

    @property
    def psql(self) -> Sequence[str]:
        """The command that runs SQL from its input in the database."""
        return self._psql(self.database)

    @property
    def pg_dump(self) -> Sequence[str]:
        """The command that prints a dump of the database."""
        return ["pg_dump", *self._address, "-d", self.database]

    async def run(self, script: str, what: str, attempts: int = 1) -> str:
        """Run SQL and return its output; repeat it after a deadlock."""
        for left in reversed(range(attempts)):
            result = await self._run_sql(self.psql, script)
            if result.ok:
                return result.stdout
            if not left or "deadlock" not in result.stderr:
                raise self._error(what, result)
        raise AssertionError("the loop returns or raises")

    async def administer(self, script: str, what: str, **names: str) -> str:
        """Run SQL in `template1`. `:db` is the database; `names` are further variables."""
        variables = [
            word for pair in {"db": self.database, **names}.items() for word in _set(*pair)
        ]
        result = await self._run_sql([*self._psql("template1"), *variables], script)
        if not result.ok:
            raise self._error(what, result)
        return result.stdout.strip()

    async def write(
        self, command: Sequence[str], target: str, what: str, stdin: bytes = b""
    ) -> None:
        """Run a command and write its output to a file that only root can read."""
        script = 'umask 077; out=$1; shift; exec "$@" > "$out"'
        words = ["sh", "-c", script, "sh", target, *command]
        result = await self._shell.run(words, timeout=_SEC, stdin=stdin, env=self.env)
        if not result.ok:
            raise self._error(what, result)

    def _psql(self, database: str) -> Sequence[str]:
        return ["psql", *self._address, "-d", database, "-XqAt", "-v", "ON_ERROR_STOP=1"]

    async def _run_sql(self, command: Sequence[str], script: str) -> ExecResult:
        return await self._shell.run(command, timeout=_SEC, stdin=script.encode(), env=self.env)

    def _error(self, what: str, result: ExecResult) -> EnvironmentError_:
        return EnvironmentError_(
            f"{what} of {self._label} failed: {tail_of(result)}",
            hint="check `host`, `port`, `user`, `database` of this [[environment.state]]",
        )


def _set(name: str, value: str) -> tuple[str, str]:
    return "-v", f"{name}={value}"
