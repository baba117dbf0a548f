"""The data of pages for the command line."""

from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import to_jsonable_python

from .index import Index, RunQuery, update_index
from .pages.runs import runs_view
from .settings import DashboardSettings


def list_runs(settings: DashboardSettings, query: str) -> dict[str, Any]:
    """Return a page of the list of runs as `/api/v1/runs` does, from an index that is up to date.

    Raises:
        UsageError: `query` is not a query of `/runs`.
        StoreError: The index cannot be written.
    """
    wanted = RunQuery.of(dict(parse_qsl(query)))
    update_index(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir)
    try:
        with index.read() as session:
            view = runs_view(session, wanted)
    finally:
        index.close()
    found: dict[str, Any] = to_jsonable_python(view)
    found["totals"]["failed"] = view.totals.failed
    return found
