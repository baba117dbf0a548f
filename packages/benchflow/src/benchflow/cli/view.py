"""`bench view`: the pages of the dashboard without a server."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from .dashboard import dashboard_package
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json

_Count = Annotated[int, Parameter(validator=Number(gte=1))]


def bundle(
    directory: Path,
    *,
    job: tuple[str, ...] = (),
    rollout: tuple[str, ...] = (),
    limit: _Count = 50,
    pages: _Count = 400,
    max_mb: _Count = 256,
    redact_env: tuple[str, ...] = (),
    force: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Write the pages of jobs and rollouts as static files that open from disk.

    Open `index.html` of the directory in a browser. The files need no server and no network, have
    no scripts, and leave secrets out. Equal records give equal files.

    Examples:
        bench view bundle out/ --job nightly
        bench view bundle out/ --rollout book-the-room__1f --force
        bench view bundle out/ --limit 10 --redact-env DATABASE_URL --json

    Args:
        directory: New directory of the bundle.
        job: Job with its rollouts. Repeatable. Without a job and a rollout, all are selected.
        rollout: Rollout: its id, or a unique start of its id. Repeatable.
        limit: Number of rollouts, the newest first.
        pages: Number of pages of one rollout, and of the lists together.
        max_mb: Size in MB, after which only the first page of each further rollout is added.
        redact_env: Variable whose value is masked, beside those of the rollouts and those whose
            names are of secrets. Repeatable.
        force: Replace an earlier bundle in the same directory.
    """
    dashboard_package()
    from benchflow_dashboard.bundle import BundleOptions, write_bundle

    options = BundleOptions(
        jobs=job,
        rollouts=rollout,
        limit=limit,
        pages=pages,
        max_mb=max_mb,
        redact_env=redact_env,
        force=force,
    )
    report = write_bundle(jobs_dir, directory, options)
    if json:
        print_json(report.model_dump(mode="json"))
        return
    size = report.bytes / 2**20
    note(f"{report.pages} pages of {report.rollouts} rollouts, {size:.1f} MB")
    if report.left_out:
        note(f"left out: {report.left_out} rollouts; --limit takes more")
    if report.omitted_pages:
        note(f"left out: {report.omitted_pages} pages; --pages and --max-mb take more")
    if report.redacted:
        note(f"masked secrets in {report.redacted} places of the record")
    note(f"open {directory / 'index.html'}")
