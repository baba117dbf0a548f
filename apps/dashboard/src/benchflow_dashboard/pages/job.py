"""The page of one job, and the list of jobs."""

from dataclasses import dataclass
from urllib.parse import quote

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Template

from benchflow_dashboard.actions.job_actions import TITLES, JobAction
from benchflow_dashboard.actions.records import ActionStore
from benchflow_dashboard.index import (
    FailureGroup,
    Index,
    Job,
    RunQuery,
    TaskRow,
    Totals,
    read_failures,
    read_jobs,
    read_tasks,
    read_totals,
)
from benchflow_dashboard.index.database import IndexSession
from benchflow_dashboard.settings import DashboardSettings

from .page import AGES_SEC, LivePage, PageRequest, jobs_dir_words, render, report_rest_sec
from .runs import eta


@dataclass(frozen=True, slots=True)
class JobView:
    """One job: its state, counters, tasks and failures."""

    job: Job
    totals: Totals
    finished: int
    """Rollouts that have ended, without those that were cancelled."""
    eta_sec: float | None
    tasks: tuple[TaskRow, ...]
    failures: tuple[FailureGroup, ...]


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in the list of jobs."""

    job: Job
    totals: Totals
    finished: int


def job_view(session: IndexSession, name: str) -> JobView | None:
    """Return the view of a job, `None` if the index does not have the job."""
    job = next(iter(read_jobs(session, name)), None)
    if job is None:
        return None
    query = RunQuery(job=name)
    totals = read_totals(session, query)
    return JobView(
        job=job,
        totals=totals,
        finished=_finished(totals),
        eta_sec=eta(session, job),
        tasks=tuple(read_tasks(session, name)),
        failures=tuple(read_failures(session, query)),
    )


def job_lines(session: IndexSession) -> tuple[JobLine, ...]:
    """Return the jobs, the newest first."""
    lines: list[JobLine] = []
    for job in read_jobs(session):
        totals = read_totals(session, RunQuery(job=job.name))
        lines.append(JobLine(job, totals, _finished(totals)))
    return tuple(lines)


def offered_actions(view: JobView) -> dict[JobAction, str]:
    """Return the actions that make sense in the state of a job, with their titles."""
    job = view.job
    if not job.is_live:
        is_done = job.pending == 0 and not view.totals.failed
        names: tuple[JobAction, ...] = () if is_done else ("resume",)
    elif job.pause:
        names = ("resume", "resize", "cancel")
    else:
        names = ("pause", "pause-now", "pause-keep", "resize", "cancel")
    return {name: TITLES[name] for name in names}


def job_url(name: str) -> str:
    """Return the URL of a job's page."""
    return f"/jobs/{quote(name, safe='')}"


def _finished(totals: Totals) -> int:
    open_ = ("running", "unfinished", "cancelled")
    return totals.n - sum(totals.by_status.get(each, 0) for each in open_)


@get("/jobs", include_in_schema=False, sync_to_thread=True)
def show_jobs(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show the list of jobs."""
    with index.read() as session:
        lines = job_lines(session)
    cli = ("bench", "eval", "list", *jobs_dir_words(settings))
    live = LivePage("runs", refresh_sec=AGES_SEC)
    return render(
        request, "jobs.html", lines, title="Jobs", section="jobs", cli=cli, context={"live": live}
    )


@get("/jobs/{job:str}", include_in_schema=False, sync_to_thread=True)
def show_job(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
    actions: NamedDependency[ActionStore],
    job: FromPath[str],
) -> Template:
    """Show one job."""
    report = index.report(("job", job), lambda session: job_view(session, job))
    view = report.result
    if view is None:
        raise NotFoundException("no job has this name")
    cli = ("bench", "eval", "show", job, *jobs_dir_words(settings))
    context = {
        "job_actions": offered_actions(view),
        "job_url": job_url(job),
        "acted": actions.newest(job, 5),
        "live": LivePage("runs", refresh_sec=AGES_SEC, rest_sec=report_rest_sec(report.seconds)),
    }
    return render(request, "job.html", view, title=job, section="jobs", cli=cli, context=context)
