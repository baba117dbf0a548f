"""The list of runs."""

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template

from benchflow_dashboard.index import Index

from .page import PageRequest, render


@get("/runs", include_in_schema=False, sync_to_thread=True)
def show_runs(request: PageRequest, index: NamedDependency[Index]) -> Template:
    """Show the list of runs."""
    return render(
        request,
        "runs.html",
        index.rollouts()[:50],
        title="Runs",
        section="runs",
        cli=("bench", "rollout", "list"),
    )
