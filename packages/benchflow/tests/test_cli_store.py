"""`bench store`: the record database of a job on the command line."""

import asyncio
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_store.database import JobWriter, PlannedSlot, PlanRevision


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a job without a database."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "jobs" / "nightly"
    directory.mkdir(parents=True)
    (directory / "job.json").write_text('{"slots": {}, "run": {}}')
    return directory


@pytest.mark.parametrize("verb", ["verify", "rebuild", "gc", "migrate"])
def test_a_job_without_a_database_is_named_with_the_file(
    job: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", verb, "nightly"]) == 2
    error = capsys.readouterr().err
    assert "job 'nightly' has no record database: jobs/nightly/record.db" in error
    assert "hint: a job of version 0.8 gets one when it is resumed" in error


def test_the_facts_of_a_database_are_written_and_verified(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def write() -> None:
        slot = PlannedSlot(name="t#0", variant="a", task="t", repeat=0, task_digest="d")
        async with JobWriter(job / "record.db", "nightly") as writer:
            await writer.begin(PlanRevision(config_digest="c"), [slot])

    asyncio.run(write())
    assert run(["store", "rebuild", "nightly"]) == 0
    assert run(["store", "verify", "nightly"]) == 0
    assert "0 problems; 0 of 1 slots" in capsys.readouterr().err
    (job / "facts" / "trials.jsonl").write_text("damaged\n")
    assert run(["store", "verify", "nightly"]) == 1
