"""The data of pages for the command line, from an index that is up to date."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic_core import to_jsonable_python

from .exports.selection import Selection
from .exports.writing import write_target
from .fleet.reader import FleetReader
from .index import Index, RunQuery, StepQuery, search_steps, update_index
from .index.database import IndexSession
from .notes.queries import read_annotations
from .pages.failures import failures_view
from .pages.fleet import fleet_json
from .pages.runs import runs_view
from .settings import DashboardSettings

_View = TypeVar("_View")


def list_runs(settings: DashboardSettings, query: str) -> dict[str, Any]:
    """Return a page of the list of runs as `/api/v1/runs` does.

    Raises:
        UsageError: `query` is not a query of `/runs`.
        StoreError: The index cannot be written.
    """
    wanted = RunQuery.of(dict(parse_qsl(query)))
    view = read_index(settings, lambda session: runs_view(session, wanted))
    found: dict[str, Any] = to_jsonable_python(view)
    found["totals"]["failed"] = view.totals.failed
    return found


def list_steps(settings: DashboardSettings, **query: str) -> dict[str, Any]:
    """Return a page of the search over steps as `/api/v1/search` does.

    Raises:
        UsageError: `query` is not a query of `/search`.
        StoreError: The index cannot be written.
    """
    wanted = StepQuery.of(query)
    found: dict[str, Any] = to_jsonable_python(
        read_index(settings, lambda session: search_steps(session, wanted))
    )
    return found


def list_failures(settings: DashboardSettings, query: str) -> dict[str, Any]:
    """Return the failures of a list of runs as `/api/v1/failures` does.

    Raises:
        UsageError: `query` is not a query of `/failures`.
        StoreError: The index cannot be written.
    """
    wanted = RunQuery.of(dict(parse_qsl(query)))
    found: dict[str, Any] = to_jsonable_python(
        read_index(settings, lambda session: failures_view(session, wanted))
    )
    return found


def list_annotations(settings: DashboardSettings, rollout: str) -> dict[str, Any]:
    """Return the labels and notes of a rollout as `/api/v1/rollouts/{rollout}/notes` does.

    Raises:
        StoreError: The index cannot be written.
    """
    view = read_index(settings, lambda session: read_annotations(session, rollout))
    found: dict[str, Any] = to_jsonable_python(view)
    return found


def read_fleet(settings: DashboardSettings, wait_sec: float) -> dict[str, Any]:
    """Return the fleet as `/api/v1/fleet` does, after a wait of at most `wait_sec`.

    Raises:
        StoreError: The index cannot be written.
    """
    update_index(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir)
    try:
        return fleet_json(FleetReader(index.live_jobs).view(wait_sec))
    finally:
        index.close()


def export_runs(
    settings: DashboardSettings, query: str, exporter: str, target: Path
) -> dict[str, Any]:
    """Write the rows of a selection as `/export/rows` does. Return the counts of the export.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
        UsageError: The query is wrong, or `target` exists and is not an export.
        StoreError: A file of a rollout is damaged, or a file cannot be written.
    """
    selection = Selection.of_query(query)
    update_index(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir, settings.notes_path())
    try:
        return write_target(selection, index, exporter, target).model_dump()
    finally:
        index.close()


def read_index(settings: DashboardSettings, read: Callable[[IndexSession], _View]) -> _View:
    """Bring the index up to date, and return what `read` reads of it.

    Raises:
        StoreError: The index cannot be written.
    """
    update_index(settings.index_path(), settings.jobs_dir, settings.database_url)
    index = Index(settings.index_path(), settings.jobs_dir, settings.notes_path())
    try:
        with index.read() as session:
            return read(session)
    finally:
        index.close()
