"""A job in a database, as the conformance kit of stores reads it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchflow_contracts import (
    Completion,
    CompletionStatus,
    Dispatch,
    JobStore,
    NodeError,
)
from benchflow_store.database import JobReader, JobWriter
from benchflow_testing import RecordedAttempt
from job_records import PLAN, planned, scored_record


class DatabaseJob:
    """A job of four slots in a database, whose stores the conformance kit checks."""

    def __init__(self, database: Path, store_of: Callable[[JobWriter], JobStore]) -> None:
        """Make a job whose stores are those that `store_of` returns for a writer."""
        self._database = database
        self._store_of = store_of

    async def begin(self) -> JobStore:
        """Begin a run of the job, with a greater epoch than before."""
        writer = JobWriter(self._database, "job")
        await writer.begin(PLAN, planned(4), now=1.0)
        return self._store_of(writer)

    def dispatch(self, index: int, attempt: int, epoch: int) -> Dispatch:
        """Return an attempt at a slot."""
        return Dispatch(
            job="job",
            index=index,
            slot=planned(1, index)[0].name,
            attempt=attempt,
            epoch=epoch,
            rollout=f"r{index}-{attempt}-{epoch}",
        )

    def completion(self, dispatch: Dispatch, status: CompletionStatus) -> Completion:
        """Return how an attempt ended, with a record if it is scored."""
        record = scored_record(dispatch)
        if status == "scored":
            return Completion.of(dispatch, status, record=record.model_dump(mode="json"))
        error = NodeError(boundary="sandbox", type="CapacityError", message="no room")
        return Completion.of(dispatch, status, error=error)

    async def attempts(self) -> Sequence[RecordedAttempt]:
        """Read the record, in the order in which it was written."""
        with JobReader(self._database) as reader:
            return [
                RecordedAttempt(each.index, each.attempt, each.epoch, each.status, each.counted)
                for each in reader.attempts()
            ]
