"""The comparison of variants and jobs: `/jobs/{job}/compare`."""

from urllib.parse import quote

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Template

from benchflow_dashboard.index import Index, read_jobs
from benchflow_dashboard.reports.comparison import (
    OUTCOMES,
    SORTS,
    CompareQuery,
    CompareView,
    compare_view,
)
from benchflow_dashboard.settings import DashboardSettings

from .page import LivePage, PageRequest, jobs_dir_words, render, report_rest_sec

_CHOICES = 200


@get("/jobs/{job:str}/compare", include_in_schema=False, sync_to_thread=True)
def show_comparison(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
    job: FromPath[str],
) -> Template:
    """Show the variants of a job, and of further jobs, on the same tasks."""
    query = CompareQuery.of(request.query_params.multi_items())
    key = ("compare", job, query)
    report = index.report(key, lambda session: compare_view(session, job, query))
    view = report.result
    with index.read() as session:
        choices = [each.name for each in read_jobs(session, most=_CHOICES) if each.name != job]
    if view is None:
        raise NotFoundException("no job has this name")
    base_url = f"/jobs/{quote(job, safe='')}/compare"
    return render(
        request,
        "compare.html",
        view,
        title=f"Compare {job}",
        section="jobs",
        cli=compare_command(job, query, settings),
        context={
            "job": job,
            "query": query,
            "choices": choices,
            "outcomes": OUTCOMES,
            "sorts": SORTS,
            "scale": interval_scale(view),
            "base_url": base_url,
            "first_url": f"{base_url}?{query.with_().url_query()}",
            "next_url": f"{base_url}?{query.with_(after=view.next or '').url_query()}",
            "live": LivePage("runs", rest_sec=report_rest_sec(report.seconds)),
            "clear_url": f"{base_url}?{query.with_(outcome='').url_query()}",
        },
    )


def compare_command(job: str, query: CompareQuery, settings: DashboardSettings) -> tuple[str, ...]:
    """Return the words of the command that prints the same numbers."""
    baseline = ("--baseline", query.baseline) if query.baseline else ()
    words = ("bench", "analyze", "show", job, *query.others)
    return (*words, *baseline, *jobs_dir_words(settings))


def interval_scale(view: CompareView) -> float:
    """Return the value at the edge of the drawn intervals. Each interval has 0 in its middle."""
    ends = [0.05]
    for each in view.comparisons:
        if each.paired is not None:
            ends.append(abs(each.paired.delta))
            interval = each.paired.interval
            ends += [] if interval is None else [abs(interval.low), abs(interval.high)]
    return max(ends)
