"""A file of a rollout as an attachment: `/r/{rollout}/evidence/{file}`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from benchflow_contracts import StoreError
from benchflow_store import EvidenceFile, list_evidence, open_evidence
from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath
from litestar.response import Stream

from benchflow_dashboard.index import Index
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.evidence_files import MOST_BYTES, place_of

from .page import PageRequest, find_one
from .rollout import load_rollout

_CHUNK: Final = 1 << 18


@get("/r/{rollout:str}/evidence/{file:str}", include_in_schema=False)
async def download_evidence(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    settings: NamedDependency[DashboardSettings],
    rollout: FromPath[str],
    file: FromPath[str],
) -> Stream:
    """Send a file that the evidence of a node lists. `file` is its id, never a path.

    A browser saves the file: it is never shown with the rights of this site.
    """
    sel = request.query_params.get("sel", "")
    place, found = await asyncio.to_thread(
        _find, index, rollouts, settings.jobs_dir, rollout, sel, file
    )
    name = "".join(char if char.isprintable() else "_" for char in found.text.rpartition("/")[2])
    return Stream(
        _read(settings.jobs_dir, place, found),
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "Content-Length": str(found.size),
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "Cache-Control": "no-store",
        },
    )


def _find(
    index: Index, rollouts: RolloutCache, jobs_dir: Path, rollout: str, sel: str, file: str
) -> tuple[Sequence[str], EvidenceFile]:
    """Return the file with its size now.

    Raises:
        NotFoundException: The evidence does not list the file, or the file is a link by now.
        HTTPException: The file is too large. The status is 413.
    """
    entry = find_one(index, rollout)
    loaded = load_rollout(rollouts, entry)
    node = None if loaded is None else loaded.stored.tree.index.get(sel)
    place = place_of(entry.job, entry.id)
    try:
        listing = list_evidence(jobs_dir, place, node)
        found = next((each for each in listing.files if each.id == file), None)
        if found is None:
            raise NotFoundException("the evidence of this node does not have the file")
        with open_evidence(jobs_dir, place, found) as opened:
            size = os.fstat(opened.fileno()).st_size
    except StoreError as error:
        raise NotFoundException(str(error)) from error
    if size > MOST_BYTES:
        raise HTTPException("the file is larger than 256 MiB", status_code=413)
    return place, EvidenceFile(found.path, size)


async def _read(jobs_dir: Path, place: Sequence[str], file: EvidenceFile) -> AsyncGenerator[bytes]:
    """Yield the bytes of a file up to its size at the start: a log may grow meanwhile."""
    left = file.size
    with open_evidence(jobs_dir, place, file) as opened:
        while left > 0:
            chunk = await asyncio.to_thread(opened.read, min(_CHUNK, left))
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
