"""The files of the evidence tab: what can be downloaded, and the text of one of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from benchflow_contracts import RolloutNode, StoreError
from benchflow_store import EvidenceFile, EvidenceListing, list_evidence, open_evidence

from .query import RolloutQuery

MOST_BYTES: Final = 256 << 20
"""A larger file is not sent: its path on the host is shown."""
_SHOWN: Final = 16_384
"""The end of a file that a page shows, in bytes."""
_FIRST: Final = ("verifier/test-stdout.txt", "agent/stderr.txt")


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One file of the list."""

    name: str
    size: int
    show_url: str
    download_url: str | None
    """`None` for a file that is too large to send."""
    is_shown: bool


@dataclass(frozen=True, slots=True)
class EvidenceText:
    """The end of a file, as text."""

    name: str
    text: str
    left_out: int
    """Bytes before the text."""


@dataclass(frozen=True, slots=True)
class EvidenceFiles:
    """The files of the world that a node belongs to."""

    world: str
    """`branches/n3`, or empty for the first world."""
    rows: Sequence[EvidenceRow] = ()
    hidden: int = 0
    refused: int = 0
    """Links, pipes and devices."""
    shown: EvidenceText | None = None
    problem: str = ""
    """Why the files cannot be listed or read."""


def place_of(job: str, rollout: str) -> tuple[str, ...]:
    """Return the names of the directories of a rollout below the directory of the jobs."""
    return tuple(name for name in (job, rollout) if name)


def evidence_files(
    jobs_dir: Path, place: Sequence[str], node: RolloutNode, query: RolloutQuery
) -> EvidenceFiles:
    """Return the files, and the end of the one that the query names, else of the test output."""
    try:
        listing = list_evidence(jobs_dir, place, node)
    except StoreError as error:
        return EvidenceFiles("", problem=str(error))
    chosen = _chosen(listing, query.file)
    shown, problem = None, ""
    if chosen is not None:
        try:
            shown = _text(jobs_dir, place, chosen)
        except StoreError as error:
            problem = str(error)
    return EvidenceFiles(
        world=listing.world,
        rows=[_row(file, place[-1], query, is_shown=file is chosen) for file in listing.files],
        hidden=listing.hidden,
        refused=listing.refused,
        shown=shown,
        problem=problem,
    )


def _chosen(listing: EvidenceListing, wanted: str | None) -> EvidenceFile | None:
    if wanted is not None:
        return next((file for file in listing.files if file.id == wanted), None)
    prefix = f"{listing.world}/" if listing.world else ""
    firsts = [f"{prefix}{name}" for name in _FIRST]
    return next((file for name in firsts for file in listing.files if file.path == name), None)


def _row(file: EvidenceFile, rollout: str, query: RolloutQuery, *, is_shown: bool) -> EvidenceRow:
    download = f"/r/{quote(rollout, safe='')}/evidence/{file.id}"
    sel = urlencode({"sel": query.sel or ""})
    return EvidenceRow(
        name=file.text,
        size=file.size,
        show_url=query.url(file=file.id),
        download_url=f"{download}?{sel}" if file.size <= MOST_BYTES else None,
        is_shown=is_shown,
    )


def _text(jobs_dir: Path, place: Sequence[str], file: EvidenceFile) -> EvidenceText:
    with open_evidence(jobs_dir, place, file) as opened:
        size = os.fstat(opened.fileno()).st_size
        start = max(size - _SHOWN, 0)
        opened.seek(start)
        data = opened.read(_SHOWN)
    return EvidenceText(file.text, data.decode("utf-8", "replace"), start)
