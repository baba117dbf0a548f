"""`bench analyze`: statistics of jobs, and SQL over their facts."""

import sys
from pathlib import Path
from typing import Annotated

from benchflow_analysis import TABLES as FACTS
from benchflow_analysis import (
    VIEWS,
    AnalysisOptions,
    AnalysisReport,
    QueryResult,
    analyse,
    limited_memory,
    query_jobs,
    report_notes,
    report_tables,
    to_markdown,
    write_parquet,
    write_plot,
)
from cyclopts import Parameter
from cyclopts.validators import Number

from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_blank_line, print_json, print_table, printable
from .rollouts import find_job


def show(
    job: tuple[str, ...],
    *,
    k: Annotated[tuple[int, ...], Parameter(name=["--k", "-k"])] = (),
    baseline: str | None = None,
    pass_reward: float = 1.0,
    margin: float = 0.05,
    seed: int = 0,
    md: bool = False,
    plot: Path | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Show the means of variants with their intervals, and compare them on the same tasks.

    A job may be running. Rollouts without a score are counted, and are in no mean. The design of
    a job adds the view that answers its question. The same input and seed give the same output.

    Examples:
        bench analyze show baseline
        bench analyze baseline candidate --margin 0.02 --plot delta.svg
        bench analyze nightly --baseline oracle -k 1 -k 4 --md

    Args:
        job: Job: its directory, its name, or a unique start of its name. Further jobs are compared
            with the first.
        k: Number of attempts for pass@k (default: 1, its doubles, and the repeats). Repeatable.
        baseline: Variant that the others are compared with (default: the job's, else the first).
        pass_reward: Minimum reward of an attempt that passes.
        margin: Largest difference that counts as tied.
        seed: Seed of the bootstrap.
        md: Markdown on standard output.
        plot: File for a plot of means and differences, ending in .svg or .png.
    """
    jobs = [find_job(name, jobs_dir) for name in job]
    options = AnalysisOptions(
        k=k, baseline=baseline, pass_reward=pass_reward, margin=margin, seed=seed
    )
    report = analyse(jobs, options)
    if plot is not None:
        write_plot(report, plot)
    if json:
        print_json(report.model_dump(mode="json"))
    elif md:
        sys.stdout.write(printable(to_markdown(report)))
    else:
        _print_report(report)


def _print_report(report: AnalysisReport) -> None:
    tables = report_tables(report)
    if not tables:
        note("no slot is resolved yet")
        for line in report_notes(report):
            note(line)
    for at, table in enumerate(tables):
        if at:
            print_blank_line()
        sys.stdout.write(f"{printable(table.title)}\n")
        print_table(table.columns, table.rows, empty="")
        for line in table.notes:
            note(line)


def sql(
    job: str,
    statement: str | None = None,
    *,
    also: tuple[str, ...] = (),
    max_rows: Annotated[int, Parameter(validator=Number(gte=1))] = 1000,
    max_seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 60.0,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Run one SELECT over the facts of a job, or list its tables and views.

    The statement can only read, and only the facts. A job may be running.

    Examples:
        bench analyze sql nightly
        bench analyze sql nightly "SELECT * FROM variant_summary"
        bench analyze sql nightly "FROM pass_rate_trend" --also baseline --json

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        statement: Statement of DuckDB's SQL (default: a list of the tables and views).
        also: Further job in the same tables. Repeatable.
        max_rows: Maximum number of rows.
        max_seconds: Time limit of the statement in seconds.
    """
    jobs = [find_job(name, jobs_dir) for name in (job, *also)]
    if statement is None:
        names = [("table", name) for name in FACTS] + [("view", name) for name in VIEWS]
        if json:
            print_json([{"kind": kind, "name": name} for kind, name in names])
        else:
            print_table(("kind", "name"), names, empty="no tables")
        return
    with limited_memory():
        result = query_jobs(jobs, statement, max_rows=max_rows, max_seconds=max_seconds)
    _print_rows(result, json=json)


def _print_rows(result: QueryResult, *, json: bool) -> None:
    if json:
        print_json([dict(zip(result.columns, row, strict=True)) for row in result.records()])
    else:
        rows = [["-" if cell is None else cell for cell in row] for row in result.rows]
        print_table(result.columns, rows, empty="no rows")
    if result.has_more:
        note(f"only the first {len(result.rows)} rows are shown; --max-rows shows more")


def parquet(job: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """Write the facts of a job as parquet files. Later analyses of a large job are then faster.

    Examples:
        bench analyze parquet nightly

    Args:
        job: Job: its directory, its name, or a unique start of its name.
    """
    paths = write_parquet(find_job(job, jobs_dir))
    if json:
        print_json([str(path) for path in paths])
    else:
        for path in paths:
            note(f"wrote {path}")
