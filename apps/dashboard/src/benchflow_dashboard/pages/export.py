"""A selection of runs as rows for a trainer: `/export`, and its file `/export/rows`."""

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import parse_qsl

from benchflow_contracts import StoreError, UsageError
from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, HTTPException
from litestar.response import Stream, Template

from benchflow_dashboard.exports.selection import Selection
from benchflow_dashboard.exports.writing import DEFAULT_FORMAT, download_formats, write_file
from benchflow_dashboard.index import Index
from benchflow_dashboard.security.access import limited_export
from benchflow_dashboard.settings import DashboardSettings

from .page import PageRequest, jobs_dir_words, render

_CHUNK: Final = 1 << 18
_AT_ONCE: Final = 2
_slots = threading.BoundedSemaphore(_AT_ONCE)
"""Exports at once: each reads many logs, and other requests need the threads."""


@get("/export", include_in_schema=False, sync_to_thread=True)
def show_export(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show what an export has, with its formats and its command."""
    selection = Selection.of(request.query_params.multi_items())
    chosen, formats = _format(request), download_formats()
    words = selection.url_query()
    rows = f"/export/rows?{words}&format={chosen}" if words else f"/export/rows?format={chosen}"
    return render(
        request,
        "export.html",
        selection,
        title="Export",
        section="runs",
        cli=export_command(selection, chosen, settings),
        context={
            "runs": selection.count(index),
            "formats": formats,
            "chosen": chosen,
            "hidden": parse_qsl(words),
            "rows_url": rows,
            "runs_url": "/runs" if selection.ids else f"/runs?{words}",
        },
    )


@get("/export/rows", include_in_schema=False, sync_to_thread=True, guards=[limited_export])
def export_rows(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Stream:
    """Return the rows as a file. The rows are on disk before the first byte is sent.

    Raises:
        ClientException: A rollout is damaged. The status is 422.
    """
    selection, chosen = Selection.of(request.query_params.multi_items()), _format(request)
    if not _slots.acquire(blocking=False):
        raise HTTPException(
            status_code=429, detail="two exports run already", headers={"Retry-After": "5"}
        )
    try:
        home = settings.index_path().parent
        with tempfile.TemporaryDirectory(prefix="export-", dir=home) as scratch:
            file = write_file(selection, index, chosen, Path(scratch)).open("rb")
    except StoreError as error:
        raise ClientException(f"cannot export: {error}", status_code=422) from error
    finally:
        _slots.release()
    # The file has no name any more: it is gone when it is sent, or when the browser leaves.
    return Stream(
        _chunks(file),
        media_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{chosen}.jsonl"'},
    )


def _format(request: PageRequest) -> str:
    chosen = request.query_params.get("format", "") or DEFAULT_FORMAT
    if chosen not in download_formats():
        raise UsageError(
            f"not a format of one file: {chosen[:60]!r}",
            hint=f"choose {', '.join(download_formats())}; `bench dashboard export` has the others",
        )
    return chosen


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


def export_command(selection: Selection, chosen: str, settings: DashboardSettings) -> Sequence[str]:
    """Return the words of the command that writes the same rows."""
    words = selection.url_query()
    return (
        *("bench", "dashboard", "export"),
        *([words] if words else []),
        *("--format", chosen, "--output", f"{chosen}.jsonl"),
        *jobs_dir_words(settings),
    )
