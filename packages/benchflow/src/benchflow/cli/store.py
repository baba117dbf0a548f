"""`bench store`: the record database of a job, its artifacts and its facts."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from benchflow_contracts import EvidenceStore, StoreError, UsageError
from benchflow_jobs.attempt_evidence import evidence_of
from benchflow_jobs.planning import load_plan
from benchflow_store import database as record
from cyclopts import Parameter

from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json
from .rollouts import find_job

Database = Annotated[
    str | None, Parameter(help="URL of a Postgres database (default: record.db of the job).")
]
_MB = 1024 * 1024


def verify(
    job: str,
    *,
    database: Database = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Check the database, the digest of every artifact, and the facts.

    Examples:
        bench store verify nightly
        bench store verify jobs/nightly --json

    Args:
        job: Job: its directory, or a unique start of its name.
    """
    directory = _find(job, jobs_dir, database)
    report = record.verify(directory, database, evidence=_evidence_of(directory))
    if json:
        print_json({**asdict(report), "ok": report.ok})
        return int(not report.ok)
    for problem in report.problems:
        note(problem)
    if any(state != "equal" for state in report.files.values()):
        note("hint: `bench store rebuild` writes wrong or missing facts again")
    note(
        f"{len(report.problems)} problems; {report.cursor} of {report.slots} slots in the facts, "
        f"{report.artifacts} artifacts"
    )
    return int(not report.ok)


def rebuild(
    job: str,
    *,
    database: Database = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Write the facts, the evidence lists and the runtime files again from the database.

    Examples:
        bench store rebuild nightly

    Args:
        job: Job: its directory, or a unique start of its name.
    """
    report = record.rebuild(_find(job, jobs_dir, database), database)
    if json:
        print_json(asdict(report))
        return
    for name in report.changed:
        note(f"wrote {name}")
    note(f"{report.cursor} slots in the facts; {len(report.changed)} files were wrong or missing")


def gc(
    job: str,
    *,
    dry_run: bool = False,
    database: Database = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Delete the artifacts that no attempt of the job names.

    Examples:
        bench store gc nightly --dry-run

    Args:
        job: Job: its directory, or a unique start of its name.
        dry_run: Dry run: the artifacts are listed and not deleted.
    """
    report = record.gc(_find(job, jobs_dir, database), database, dry_run=dry_run)
    if json:
        print_json(asdict(report))
        return
    done = "would delete" if dry_run else "deleted"
    note(f"{done} {len(report.deleted)} artifacts, {report.bytes / _MB:.1f} MB; {report.kept} stay")


def migrate(
    job: str,
    *,
    database: Database = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Bring the database to the schema of this version of BenchFlow.

    Examples:
        bench store migrate nightly

    Args:
        job: Job: its directory, or a unique start of its name.
    """
    report = record.migrate(_find(job, jobs_dir, database), database)
    if json:
        print_json(asdict(report))
    else:
        note(f"schema version {report.before} before, {report.after} now")


def _evidence_of(directory: Path) -> EvidenceStore | None:
    """Return the artifacts of a job that are at a URL. A damaged plan does not say where."""
    with suppress(StoreError):
        plan = load_plan(directory)
        if plan is not None and plan.config.evidence.url is not None:
            return evidence_of(plan.config.evidence, directory)
    return None


def _find(job: str, jobs_dir: Path, database: str | None) -> Path:
    directory = find_job(job, jobs_dir)
    if database is None and not (directory / record.DATABASE_FILE).is_file():
        raise UsageError(
            f"job {directory.name!r} has no record database: {directory / record.DATABASE_FILE}",
            hint="a job of version 0.8 gets one when it is resumed; or give --database",
        )
    return directory
