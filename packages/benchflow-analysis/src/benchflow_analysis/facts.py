"""The facts of jobs, as DuckDB views."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import duckdb
from benchflow_contracts import StoreError

from .fact_files import (
    LONGEST_LINE,
    TABLES,
    USUAL_LINE,
    damaged_facts,
    expose,
    file_name,
    find_facts,
    fresh_parquet,
    quoted,
    select_rows,
)
from .records import project_records
from .statistics.trials import Trial

VIEWS: Final = (
    "variant_summary",
    "task_variant_matrix",
    "run_progress",
    "win_loss_tie",
    "ranking",
    "best_config",
    "trend",
    "all_trials",
    "all_runs",
    "pass_rate_trend",
)
_VIEWS_DIR: Final = resources.files("benchflow_analysis") / "views"
_VIEW_FILES: Final = ("job.sql", "comparison.sql", "project.sql")
T = TypeVar("T")

_SETTINGS: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "memory_limit": "2GB",
}


def view_set(design: str | None, variants: int) -> str:
    """Return the view that answers the question of a design.

    Paired with up to two variants: `win_loss_tie`. Paired with more: `ranking`. Unpaired, or a
    sweep: `best_config`. A regression, or no comparison: `trend`.
    """
    if design in {"unpaired", "sweep"}:
        return "best_config"
    if design in {"regression", "none"}:
        return "trend"
    return "ranking" if variants > 2 else "win_loss_tie"


class Facts:
    """The facts of some jobs as views of an in-memory database. Use it as a context manager.

    A job may be running: each file is read up to its last whole line. A job without `facts/` is
    read from the records of its rollouts. DuckDB can open only these files.
    """

    def __init__(self, jobs: Sequence[Path]) -> None:
        """Open the facts of `jobs`, the directories of jobs with different names.

        Raises:
            StoreError: A directory is not a job, or its facts are damaged.
        """
        self.jobs = {job.resolve().name: job for job in jobs}
        """The directories of the jobs by name, in the order of the jobs."""
        if len(self.jobs) < len(jobs):
            raise StoreError(
                f"two jobs have one name: {', '.join(map(str, jobs))}",
                hint="rename the directory of one job",
            )
        _require_text(jobs)
        self._scratch = Path(tempfile.mkdtemp(prefix="bf-facts-"))
        self._sources: dict[str, str] = {}
        self.allowed_files: set[Path] = set()
        """The files that a statement can read."""
        self.torn_bytes: dict[str, int] = {}
        """The bytes of the unfinished last line of each file that has one."""
        try:
            self.connection = self._connect(copies=False)
        except duckdb.Error as error:
            self.close()
            raise self.damage(error) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and delete its copies. Repeatable."""
        connection = cast("duckdb.DuckDBPyConnection | None", getattr(self, "connection", None))
        if connection is not None:
            connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a statement of this package.

        Raises:
            StoreError: The facts are damaged.
        """
        try:
            return self.retry(lambda: self.connection.execute(sql).fetchall())
        except duckdb.Error as error:
            raise self.damage(error) from error

    def is_damage(self, error: duckdb.Error) -> bool:
        """Return whether an error is about the content of a file, and not about a statement."""
        message = str(error)
        return any(link in message for link in self._sources)

    def damage(self, error: duckdb.Error) -> StoreError:
        """Return the error for facts that cannot be read, with the names of their files."""
        return damaged_facts(error, self._sources)

    def retry(self, read: Callable[[], T]) -> T:
        """Return `read()`; if a line cannot be read, once more from copies of the whole lines.

        The writer of a running job may have been in the middle of a line, or may have cut the
        file to write it again, or the line is long.
        """
        try:
            return read()
        except (duckdb.InvalidInputException, duckdb.IOException) as error:
            if not self.is_damage(error):
                raise
            self.refresh()
            return read()

    def refresh(self) -> None:
        """Read the files again, from copies that end with a whole line."""
        self.connection.close()
        self.connection = self._connect(copies=True)

    def trials(self) -> list[Trial]:
        """Return the resolved slots in schedule order.

        Raises:
            StoreError: The facts are damaged, or have a slot twice.
        """
        columns = {name: f'"{name}"' for name in TABLES["trials"]}
        columns["value"] = "(value->>'mean')::DOUBLE"
        rows = self.rows(f'SELECT {", ".join(columns.values())} FROM trials ORDER BY job, "index"')  # noqa: S608
        slots: set[tuple[str, str]] = set()
        for job, index, slot, variant, task, repeat, *_ in rows:
            if None in (index, slot, variant, task, repeat):
                raise damaged_facts(f"a trial of {job!r} lacks its place: {slot!r}")
            if (job, slot) in slots:
                raise damaged_facts(f"{job!r} has two trials of the slot {slot!r}")
            slots.add((job, slot))
        return [Trial(*row) for row in rows]

    def _connect(self, *, copies: bool) -> duckdb.DuckDBPyConnection:
        self.torn_bytes.clear()
        settings = {**_SETTINGS, "threads": 2} if copies else _SETTINGS
        connection = duckdb.connect(":memory:", config=cast("dict[str, Any]", settings))
        files = {name: self._files(job, copies=copies) for name, job in self.jobs.items()}
        for table in TABLES:
            rows = select_rows(
                table,
                {name: paths[table] for name, paths in files.items() if table in paths},
                LONGEST_LINE if copies else USUAL_LINE,
            )
            connection.execute(f"CREATE VIEW {table} AS {rows}")
        for name in _VIEW_FILES:
            connection.execute(_VIEWS_DIR.joinpath(name).read_text())
        # DuckDB follows links before it compares a path with what is allowed.
        self.allowed_files = {path.resolve() for each in files.values() for path in each.values()}
        paths = ", ".join(quoted(str(path)) for path in sorted(self.allowed_files))
        connection.execute(f"SET allowed_paths = [{paths}]")
        connection.execute(f"SET allowed_directories = [{quoted(str(self._scratch))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection

    def _files(self, job: Path, *, copies: bool) -> dict[str, Path]:
        """Return the files of a job by table, as links or copies with names that are safe."""
        here = Path(tempfile.mkdtemp(dir=self._scratch))
        facts = job / "facts"
        if not facts.is_dir():
            project_records(job, here)
            return {table: here / file_name(table) for table in TABLES}
        files: dict[str, Path] = {}
        for table, source in find_facts(facts).items():
            parquet = fresh_parquet(facts, table)
            files[table] = here / (parquet or source).name
            self._sources[str(files[table])] = str(parquet or source)
            if parquet is not None:
                files[table].symlink_to(parquet.absolute())
            elif source.suffix == ".json":
                files[table].symlink_to(source.absolute())
            elif torn := expose(source, files[table], copies=copies):
                self.torn_bytes[str(source)] = torn
        return files


def _require_text(jobs: Sequence[Path]) -> None:
    """Refuse the path of a job that is not UTF-8: DuckDB's paths are text."""
    for job in jobs:
        path = str(job.resolve())
        if path != path.encode("utf-8", "replace").decode():
            raise StoreError(
                f"the path of a job is not UTF-8: {path!r}", hint="rename its directory"
            )
