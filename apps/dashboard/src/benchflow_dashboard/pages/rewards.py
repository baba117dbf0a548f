"""Rewards by space and granularity: `/rewards`."""

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import Index, read_facets
from benchflow_dashboard.reports.rewards import SPACES, RewardQuery, rewards_view
from benchflow_dashboard.settings import DashboardSettings

from .page import REPORT_REST_SEC, LivePage, PageRequest, jobs_dir_words, render


@get("/rewards", include_in_schema=False, sync_to_thread=True)
def show_rewards(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show rewards over variants and over steps."""
    query = RewardQuery.of(request.query_params)
    with index.read() as session:
        view, facets = rewards_view(session, query), read_facets(session)
    words = query.url_query()
    command = ("bench", "dashboard", "rewards", *([words] if words else []))
    return render(
        request,
        "rewards.html",
        view,
        title="Rewards",
        section="rewards",
        cli=(*command, *jobs_dir_words(settings)),
        context={
            "live": LivePage("runs", rest_sec=REPORT_REST_SEC),
            "query": query,
            "jobs": facets["job"],
            "spaces": SPACES,
        },
    )
