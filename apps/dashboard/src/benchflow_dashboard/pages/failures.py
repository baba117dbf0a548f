"""The rollouts without a score, by boundary and cause: `/failures`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import (
    FailureGroup,
    Index,
    RunQuery,
    read_facets,
    read_failures,
    read_totals,
)
from benchflow_dashboard.index.database import IndexSession
from benchflow_dashboard.settings import DashboardSettings

from .page import AGES_SEC, REPORT_REST_SEC, LivePage, PageRequest, jobs_dir_words, render

_MOST: Final = 200
_FILTERS: Final = ("job", "boundary", "task", "agent", "model")


@dataclass(frozen=True, slots=True)
class FailuresView:
    """The failures of a list of runs."""

    failed: int
    """Rollouts that ended without a score."""
    by_boundary: Mapping[str, int]
    """The same by the boundary of their error; '' without an error."""
    unfinished: int
    """Rollouts without a result and without a process. No error says why, so no group has them."""
    groups: tuple[FailureGroup, ...]
    """The most frequent causes, the most frequent first."""
    is_cut: bool
    """Whether there may be more groups."""


def failures_view(session: IndexSession, query: RunQuery) -> FailuresView:
    """Return the failures of a query. Its status, order and place do not count."""
    wanted = query.with_(status="")
    totals = read_totals(session, wanted)
    groups = read_failures(session, wanted, most=_MOST)
    return FailuresView(
        failed=totals.failed,
        by_boundary=totals.by_boundary,
        unfinished=totals.by_status.get("unfinished", 0),
        groups=tuple(groups),
        is_cut=len(groups) == _MOST,
    )


@get("/failures", include_in_schema=False, sync_to_thread=True)
def show_failures(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show why rollouts have no score."""
    query = RunQuery.of(request.query_params).with_(status="", sort="-when")
    with index.read() as session:
        view, facets = failures_view(session, query), read_facets(session)
    return render(
        request,
        "failures.html",
        view,
        title="Failures",
        section="failures",
        cli=failures_command(query, settings),
        context={
            "live": LivePage("runs", refresh_sec=AGES_SEC, rest_sec=REPORT_REST_SEC),
            "query": query,
            "facets": {name: facets[name] for name in _FILTERS},
            "without_urls": {
                name: f"/failures?{query.with_(**{name: ''}).url_query()}" for name in query.filters
            },
            "boundary_urls": {
                boundary: f"/failures?{query.with_(boundary=boundary or '-').url_query()}"
                for boundary in view.by_boundary
            },
            "group_urls": [group_url(query, group) for group in view.groups],
            "unfinished_url": f"/runs?{query.with_(status='unfinished').url_query()}",
        },
    )


def group_url(query: RunQuery, group: FailureGroup) -> str:
    """Return the URL of the runs of a group."""
    fields = {"boundary": group.boundary or "-", "fp": group.fingerprint}
    return f"/runs?{query.with_(status='unscored', **fields).url_query()}"


def failures_command(query: RunQuery, settings: DashboardSettings) -> Sequence[str]:
    """Return the words of the command that prints the same groups."""
    words = query.url_query()
    given = [words] if words else []
    return ("bench", "dashboard", "failures", *given, *jobs_dir_words(settings))
