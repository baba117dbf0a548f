"""The list of runs: filters, order, counters and pages by key, all in the URL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import (
    Index,
    Job,
    Run,
    RunQuery,
    Totals,
    read_facets,
    read_jobs,
    read_page,
    read_rate,
    read_totals,
)
from benchflow_dashboard.index.database import IndexSession
from benchflow_dashboard.notes.queries import read_labels
from benchflow_dashboard.settings import DashboardSettings

from .page import AGES_SEC, LivePage, PageRequest, jobs_dir_words, render
from .saved_views import SavedView, saved_views

PRESETS: Final = (
    SavedView("newest", ""),
    SavedView("worst first", "sort=reward"),
    SavedView("unscored", "status=unscored"),
    SavedView("running", "status=running"),
    SavedView("slowest", "sort=-seconds"),
    SavedView("most expensive", "sort=-cost"),
)
COLUMNS: Final = (
    ("", "status", ""),
    ("task", "task", ""),
    ("", "job", "aside"),
    ("", "variant", "aside"),
    ("reward", "reward", "number"),
    ("", "spread of leaves", ""),
    ("", "n", "number"),
    ("steps", "steps", "number"),
    ("", "asks", "number"),
    ("cost", "cost", "number"),
    ("seconds", "took", "number"),
    ("when", "when", "number"),
)
"""The key of the order, the title and the class of each column."""


@dataclass(frozen=True, slots=True)
class RunsView:
    """One page of the list of runs."""

    totals: Totals
    runs: tuple[Run, ...]
    labels: Mapping[str, tuple[str, ...]]
    """The labels of these runs, by the id of the rollout."""
    planned: int | None
    """The planned rollouts of the job; `None` without the filter of one job."""
    eta_sec: float | None
    """The seconds until the job is done, by the rate of the last rollouts."""
    next: str | None
    """The `after` of the next page."""
    previous: str | None
    """The `before` of the page before."""


def runs_view(session: IndexSession, query: RunQuery) -> RunsView:
    """Return the page of a query. The command line, the API and the page show this."""
    totals = read_totals(session, query)
    page = read_page(session, query, totals.n)
    job = next(iter(read_jobs(session, query.job)), None) if query.job else None
    return RunsView(
        totals=totals,
        runs=page.runs,
        labels=read_labels(session, [run.id for run in page.runs]),
        planned=None if job is None else job.planned,
        eta_sec=None if job is None else eta(session, job),
        next=page.next,
        previous=page.previous,
    )


def eta(session: IndexSession, job: Job) -> float | None:
    """Return the seconds until a job that runs is done, `None` if nobody can know."""
    rate = read_rate(session, job.name) if job.is_live and job.pending else None
    return None if rate is None or job.pending is None else job.pending / rate


@get("/runs", include_in_schema=False, sync_to_thread=True)
def show_runs(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show the list of runs."""
    query = RunQuery.of(request.query_params)
    with index.read() as session:
        view, facets = runs_view(session, query), read_facets(session)
    words = query.url_query()
    hidden = ("job",) if query.job else ()
    return render(
        request,
        "runs.html",
        view,
        title="Runs",
        section="runs",
        cli=runs_command(query, settings),
        fragment="runs_table.html",
        context={
            "live": LivePage("runs", refresh_sec=AGES_SEC),
            "query": query,
            "query_url": words,
            "export_url": query.with_().url_query(),
            "facets": facets,
            "columns": [(key, title, kind) for key, title, kind in COLUMNS if title not in hidden],
            "sort_urls": {key: _sort_url(query, key) for key, _, _ in COLUMNS if key},
            "presets": PRESETS,
            "saved": saved_views(request),
            "watcher": index.watcher,
            "without_urls": {
                name: f"/runs?{query.with_(**{name: ''}).url_query()}" for name in query.filters
            },
            "next_url": None if view.next is None else _place_url(query, after=view.next),
            "previous_url": (
                None if view.previous is None else _place_url(query, before=view.previous)
            ),
        },
    )


def runs_command(query: RunQuery, settings: DashboardSettings) -> Sequence[str]:
    """Return the words of the command that prints the same page."""
    words = query.url_query()
    return ("bench", "dashboard", "runs", *([words] if words else []), *jobs_dir_words(settings))


def _sort_url(query: RunQuery, key: str) -> str:
    """Order by a column; a second click turns the order."""
    wanted = key if query.sort == f"-{key}" else f"-{key}"
    if key == "task" and query.sort != "task":
        wanted = "task"
    return f"/runs?{query.with_(sort=wanted).url_query()}"


def _place_url(query: RunQuery, *, after: str = "", before: str = "") -> str:
    return f"/runs?{query.with_(after=after, before=before).url_query()}"
