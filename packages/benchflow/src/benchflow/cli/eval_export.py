"""`bench eval export`: a job for a trainer or another engine.

It is not beside the other commands of jobs, so that a job without an export does not import the
formats.
"""

from pathlib import Path

from benchflow_contracts import TrainingOptions
from benchflow_export import exporter_with
from benchflow_jobs import read_job
from benchflow_store import read_finished_rollouts

from .export_flags import ExportFlags, write_and_report
from .flags import DEFAULT_JOBS, JobsDir, Json
from .rollouts import find_job


def export(
    job: str,
    *,
    output: Path,
    format: str = "harbor",  # noqa: A002 - the flag's name
    options: ExportFlags = TrainingOptions(),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Export a job for a trainer or another engine.

    Examples:
        bench eval export 2026-11-21 --output rows.jsonl --format verifiers
        bench eval export 2026-11-21 --output traces.jsonl --format v1-leaves --advantage inter
        bench eval export 2026-11-21 --output harbor-jobs/2026-11-21
        bench eval export 2026-11-21 --output harbor-jobs/2026-11-21 && harbor view harbor-jobs

    Args:
        job: Job: its directory, its name, or a unique start of its name.
        output: File or directory of the export. An earlier export is replaced; another
            directory is refused.
        format: Format of the export; `bench rollout formats` lists the formats. A format of one
            file is written as that file if --output has its suffix.
    """
    exporter_with(format, options)
    report = read_job(find_job(job, jobs_dir))
    rollouts = read_finished_rollouts(report.directory, report.records)
    write_and_report(format, rollouts, output, options, json=json)
