"""The search over steps: `/search`."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchflow_contracts import UsageError
from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import (
    Index,
    StepHit,
    StepQuery,
    read_facets,
    search_steps,
)
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.query import RolloutQuery

from .page import REPORT_REST_SEC, LivePage, PageRequest, jobs_dir_words, render
from .rollout import rollout_url

_FACETS: Final = ("job", "task", "status")


@get("/search", include_in_schema=False, sync_to_thread=True)
def show_search(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show the steps that match. A wrong query is shown with its reason, with status 400."""
    view, problem = None, ""
    query = _as_typed(request.query_params)
    with index.read() as session:
        facets = read_facets(session)
        try:
            query = StepQuery.of(request.query_params)
            view = search_steps(session, query)
        except UsageError as error:
            problem = f"{error}." + (f" Hint: {error.hint}." if error.hint else "")
    page = render(
        request,
        "search.html",
        view,
        title="Search",
        section="search",
        cli=search_command(query, settings) if view and query.q else (),
        context={
            "live": LivePage("runs", rest_sec=REPORT_REST_SEC) if view and query.q else None,
            "query": query,
            "problem": problem,
            "facets": {name: facets[name] for name in _FACETS},
            "without_urls": {name: _url(query.with_(**{name: ""})) for name in query.filters},
            "without_all_url": _url(query.with_(job="", task="", status="")),
            "next_url": _url(query.with_(after=view.next)) if view and view.next else None,
            "previous_url": (
                _url(query.with_(before=view.previous)) if view and view.previous else None
            ),
            "step_url": step_url,
        },
    )
    if problem:
        page.status_code = 400
    return page


def _as_typed(params: Mapping[str, str]) -> StepQuery:
    """Return the query for the form of a page that refuses it."""
    return StepQuery(**{name: params.get(name, "")[:1_000] for name in ("q", *_FACETS)})


def _url(query: StepQuery) -> str:
    return f"/search?{query.url_query()}"


def step_url(hit: StepHit) -> str:
    """Return the URL of a step: its rollout, with the node selected."""
    return rollout_url(hit.run, RolloutQuery(sel=hit.node).url().removeprefix("?"))


def search_command(query: StepQuery, settings: DashboardSettings) -> Sequence[str]:
    """Return the words of the command that prints the same page."""
    flags = [f"--{name}={value}" for name, value in query.given.items() if name != "q"]
    words = ("--", query.q) if query.q.startswith("-") else (query.q,)
    return ("bench", "dashboard", "search", *flags, *jobs_dir_words(settings), *words)
