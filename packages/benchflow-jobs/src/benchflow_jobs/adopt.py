"""Results that are on disk and not in the record: of killed drivers, and of jobs of version 0.8."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from benchflow_contracts import Completion, EvidenceStore, RolloutRecord, StoreError
from benchflow_store import read_record
from benchflow_store.database import DATABASE_FILE, JobReader, JobState, JobWriter

from .attempt_events import stored_events
from .job_record import with_files

_logger = logging.getLogger(__name__)


async def adopt_results(
    writer: JobWriter, state: JobState, directory: Path, evidence: EvidenceStore | None = None
) -> int:
    """Commit each result on disk that the record lacks, and return their number.

    A driver that is killed between the end of a rollout and its commit leaves such a result. A
    job that version 0.8 began has no record at all. Files that were not finished are deleted. A
    damaged result is left out, with a warning.

    Raises:
        StoreError: The directory cannot be read, or the record cannot be written.
    """
    with JobReader(directory / DATABASE_FILE) as reader:
        known = reader.ended_rollouts()
    records = list(_unknown_records(directory, known))
    indexes = {each.slot.name: each.index for each in state.slots} if records else {}
    tries = Counter[str]()
    count = 0
    # Only records of version 0.8.0 and before have no attempt.
    for record in sorted(records, key=lambda each: (each.attempt or 0, each.finished_at)):
        slot = record.slot or ""
        if slot not in indexes:
            continue
        tries[slot] = record.attempt or tries[slot] + 1
        completion = _completion(record, state, indexes[slot], tries[slot])
        events = stored_events(directory / record.rollout_id)
        completion = completion.model_copy(update={"events": events})
        await writer.commit(await with_files(completion, evidence, directory))
        count += 1
    return count


def _unknown_records(directory: Path, known: set[str]) -> Iterator[RolloutRecord]:
    try:
        names = sorted({entry.name for entry in os.scandir(directory)} - known)
    except OSError as error:
        raise StoreError(f"cannot read {str(directory)!r}: {error.strerror}") from error
    for name in names:
        _delete_unfinished(directory / name)
        path = directory / name / "result.json"
        if not path.is_file():
            continue
        try:
            yield read_record(path)
        except StoreError as error:
            # A power cut can tear a result that no commit followed. The file stays as evidence.
            _logger.warning("the slot of a damaged result runs again: %s", error)


def _delete_unfinished(rollout: Path) -> None:
    """Delete the files that a killed process was writing. Artifacts may have such names, too."""
    for place in (rollout, rollout / "trajectory", rollout / "trainer"):
        for path in place.glob(".*.tmp"):
            with suppress(OSError):
                path.unlink()


def _completion(record: RolloutRecord, state: JobState, index: int, attempt: int) -> Completion:
    return Completion(
        job=state.name,
        index=index,
        slot=record.slot or "",
        attempt=attempt,
        epoch=_epoch(record.epoch, state.epoch),
        rollout=record.rollout_id,
        status=_status(record),
        record=record.model_dump(mode="json"),
        error=record.error,
        finished_at=record.finished_at,
    )


def _status(record: RolloutRecord) -> Literal["scored", "cancelled", "unscored"]:
    if record.is_final:
        return "scored"
    return "cancelled" if record.status == "cancelled" else "unscored"


def _epoch(text: str | None, newest: int) -> int:
    """Return the epoch of a record. Version 0.8 has other epochs, such as `1764000000000-17`."""
    known = int(text) if text is not None and text.isdecimal() else newest
    return known if 1 <= known <= newest else newest
