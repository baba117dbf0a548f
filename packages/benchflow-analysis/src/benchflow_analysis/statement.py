"""Read-only SQL over the facts of jobs."""

import math
import resource
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, cast

import duckdb
from benchflow_contracts import UsageError

from .fact_files import quoted
from .facts import Facts

MAX_ROWS: Final = 10_000
MAX_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a statement."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    has_more: bool
    """Whether the statement has more rows than were asked for."""

    def records(self) -> list[tuple[Any, ...]]:
        """Return the rows with values that JSON has; others, such as dates, as text."""
        return [tuple(map(to_json_value, row)) for row in self.rows]


def to_json_value(value: object) -> object:
    """Return a value that JSON has; another one, such as a date, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {str(key): to_json_value(each) for key, each in items}
    return str(value)


def query(
    facts: Facts, sql: str, *, max_rows: int = MAX_ROWS, max_seconds: float = MAX_SECONDS
) -> QueryResult:
    """Run one statement that only reads, and return at most `max_rows` rows.

    The statement must be a SELECT; DESCRIBE, SUMMARIZE, VALUES, FROM and WITH count as one. It
    sees the facts and no other file.

    Raises:
        UsageError: The statement is wrong, does more than reading, needs too much memory, or takes
            longer than `max_seconds`.
        StoreError: The facts are damaged.
    """
    statement = _checked(facts, sql)
    try:
        return facts.retry(lambda: _run(facts, statement, max_rows, max_seconds))
    except (duckdb.InvalidInputException, duckdb.IOException) as error:
        raise (facts.damage(error) if facts.is_damage(error) else _refusal(error)) from error
    except duckdb.Error as error:
        raise _refusal(error) from error


def query_jobs(
    jobs: Sequence[Path], sql: str, *, max_rows: int = MAX_ROWS, max_seconds: float = MAX_SECONDS
) -> QueryResult:
    """Open the facts of `jobs` and run `query`."""
    with Facts(jobs) as facts:
        return query(facts, sql, max_rows=max_rows, max_seconds=max_seconds)


@contextmanager
def limited_memory(more: int = 4 << 30) -> Generator[None]:
    """Limit this process to `more` bytes above what it has now, while the block runs.

    The limit is for a process that only asks: it holds for every thread. DuckDB's own limit does
    not count long strings and lists.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more
    limits = [limit, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _checked(facts: Facts, sql: str) -> str:
    """Return the statement as a table function.

    DuckDB calls `WITH x AS (COPY ...) SELECT` a SELECT, too. It refuses writes inside `query`.
    """
    if sql != sql.encode("utf-8", "replace").decode():
        raise UsageError(f"the statement is not UTF-8: {sql!r}")
    try:
        statements = facts.connection.extract_statements(sql)
    except duckdb.Error as error:
        raise _refusal(error) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"not one SELECT statement: {sql!r}",
            hint='for example "SELECT * FROM variant_summary"',
        )
    return f"FROM query({quoted(sql)})"


def _run(facts: Facts, statement: str, max_rows: int, max_seconds: float) -> QueryResult:
    connection = facts.connection
    connection.execute("BEGIN TRANSACTION READ ONLY")
    timer = threading.Timer(max_seconds, connection.interrupt)
    timer.start()
    try:
        result = connection.execute(statement)
        columns = tuple(str(column[0]) for column in result.description or ())
        rows = result.fetchmany(max_rows + 1)
    finally:
        timer.cancel()
        timer.join()
        connection.execute("ROLLBACK")
    return QueryResult(columns, rows[:max_rows], has_more=len(rows) > max_rows)


def _refusal(error: duckdb.Error) -> UsageError:
    if isinstance(error, duckdb.InterruptException):
        return UsageError(
            "the statement took too long", hint="ask for less, or raise --max-seconds"
        )
    message, *more = str(error).splitlines()
    hint = next((line for line in more if line.startswith("Did you mean")), None)
    return UsageError(message, hint=hint or "list the views with `bench analyze sql JOB`")
