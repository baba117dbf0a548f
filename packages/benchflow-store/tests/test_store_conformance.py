"""The writer of a job's record and the stores of artifacts pass the kit."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from benchflow_contracts import (
    Completion,
    EvidenceStore,
)
from benchflow_store.database import (
    Commit,
    JobWriter,
    LocalEvidenceStore,
    ObjectEvidenceStore,
)
from benchflow_testing import (
    EvidenceSubject,
    JobStoreCheck,
    JobStoreSubject,
    check_evidence_store,
    job_store_checks,
    run_check,
)
from database_job import DatabaseJob


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


@pytest.mark.parametrize("check", job_store_checks(), ids=str)
def test_the_writer_keeps_the_promises(check: JobStoreCheck, tmp_path: Path) -> None:
    async def new_job() -> DatabaseJob:
        return DatabaseJob(tmp_path / "record.db", WriterStore)

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
