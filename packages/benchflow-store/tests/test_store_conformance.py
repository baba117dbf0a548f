"""The writer of a job's record and the stores of artifacts pass the kit."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchflow_contracts import (
    Completion,
    CompletionStatus,
    Dispatch,
    EvidenceStore,
    NodeError,
    RolloutRecord,
)
from benchflow_store.database import (
    Commit,
    JobReader,
    JobWriter,
    LocalEvidenceStore,
    ObjectEvidenceStore,
)
from benchflow_testing import (
    EvidenceSubject,
    JobStoreCheck,
    JobStoreSubject,
    RecordedAttempt,
    check_evidence_store,
    job_store_checks,
    run_check,
)
from job_records import PLAN, planned


class WriterStore:
    """A `JobWriter` that commits only completions."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self.start = writer.start
        self.close = writer.close

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    async def commit(self, completion: Completion) -> None:
        await self._writer.commit(Commit(completion))


class DatabaseJob:
    """A job of four slots in a database."""

    def __init__(self, database: Path) -> None:
        self._database = database

    async def begin(self) -> WriterStore:
        writer = JobWriter(self._database, "job")
        await writer.begin(PLAN, planned(4), now=1.0)
        return WriterStore(writer)

    def dispatch(self, index: int, attempt: int, epoch: int) -> Dispatch:
        return Dispatch(
            job="job",
            index=index,
            slot=planned(1, index)[0].name,
            attempt=attempt,
            epoch=epoch,
            rollout=f"r{index}-{attempt}-{epoch}",
        )

    def completion(self, dispatch: Dispatch, status: CompletionStatus) -> Completion:
        record = RolloutRecord(
            rollout_id=dispatch.rollout,
            task_id="task",
            task_digest="sha256:0",
            agent="oracle",
            model=None,
            sandbox="local",
            status="completed",
            reward=1.0,
            finished_at=1_000.5,
            slot=dispatch.slot,
        )
        if status == "scored":
            return Completion.of(dispatch, status, record=record.model_dump(mode="json"))
        error = NodeError(boundary="sandbox", type="CapacityError", message="no room")
        return Completion.of(dispatch, status, error=error)

    async def attempts(self) -> Sequence[RecordedAttempt]:
        with JobReader(self._database) as reader:
            return [
                RecordedAttempt(each.index, each.attempt, each.epoch, each.status, each.counted)
                for each in reader.attempts()
            ]


@pytest.mark.parametrize("check", job_store_checks(), ids=str)
def test_the_writer_keeps_the_promises(check: JobStoreCheck, tmp_path: Path) -> None:
    async def new_job() -> DatabaseJob:
        return DatabaseJob(tmp_path / "record.db")

    asyncio.run(run_check(check, JobStoreSubject(new_job))).raise_if_failed()


@pytest.mark.parametrize(
    "make",
    [LocalEvidenceStore, lambda path: ObjectEvidenceStore(path.as_uri())],
    ids=["local", "object"],
)
def test_a_store_of_artifacts_keeps_the_promises(
    make: Callable[[Path], EvidenceStore], tmp_path: Path
) -> None:
    def damage(digest: str, data: bytes) -> None:
        next(tmp_path.rglob(digest)).write_bytes(data)

    results = asyncio.run(check_evidence_store(EvidenceSubject(make(tmp_path), damage)))
    assert [(each.name, each.reason) for each in results if each.status != "passed"] == []
