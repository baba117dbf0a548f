"""Cost and tokens by job, variant, task or model: `/cost`."""

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import Index, read_facets
from benchflow_dashboard.reports.costs import GROUPINGS, SORTS, CostQuery, costs_view
from benchflow_dashboard.settings import DashboardSettings

from .page import LivePage, PageRequest, jobs_dir_words, render, report_rest_sec


@get("/cost", include_in_schema=False, sync_to_thread=True)
def show_costs(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show what rollouts cost, also per success."""
    query = CostQuery.of(request.query_params)
    report = index.report(("cost", query), lambda session: costs_view(session, query))
    with index.read() as session:
        facets = read_facets(session)
    view = report.result
    words = query.url_query()
    return render(
        request,
        "costs.html",
        view,
        title="Cost",
        section="cost",
        cli=("bench", "dashboard", "cost", *([words] if words else []), *jobs_dir_words(settings)),
        context={
            "live": LivePage("runs", rest_sec=report_rest_sec(report.seconds)),
            "query": query,
            "jobs": facets["job"],
            "groupings": GROUPINGS,
            "sorts": SORTS,
            "by_urls": {by: _url(query.with_(by=by)) for by in GROUPINGS},
            "first_url": _url(query.with_()),
            "next_url": None if view.next is None else _url(query.with_(after=view.next)),
        },
    )


def _url(query: CostQuery) -> str:
    return f"/cost?{query.url_query()}"
