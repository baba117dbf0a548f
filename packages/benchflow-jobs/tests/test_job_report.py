"""Which attempt of a slot counts, and the summary of a job that has not ended."""

from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RolloutRecord, StoreError
from benchflow_jobs import job_directories, read_job
from benchflow_store import latest_records, write_result
from old_job import write_old_plan

DAY = 86_400.0


def write(job: Path, name: str, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "rollout_id": name,
        "task_id": "t",
        "task_digest": "sha256:0",
        "agent": "nop",
        "model": None,
        "sandbox": "local",
        "status": "failed",
        "slot": "t#0",
        "finished_at": 5 * DAY,
        **changes,
    }
    write_result(job / name, RolloutRecord.model_validate(fields))


SCORED: dict[str, Any] = {"status": "completed", "reward": 1.0}


def test_the_last_attempt_counts_although_the_clock_was_set_back(tmp_path: Path) -> None:
    write(tmp_path, "r1", attempt=1, finished_at=5 * DAY)
    write(tmp_path, "r2", attempt=2, finished_at=4 * DAY)
    write(tmp_path, "r3", attempt=3, finished_at=3 * DAY)
    assert latest_records(tmp_path)["t#0"].rollout_id == "r3"


def test_a_graded_attempt_counts_whatever_comes_after_it(tmp_path: Path) -> None:
    write(tmp_path, "r1", attempt=1, finished_at=3 * DAY, **SCORED)
    write(tmp_path, "r2", attempt=2, finished_at=5 * DAY)
    assert latest_records(tmp_path)["t#0"].rollout_id == "r1"


def test_records_without_an_attempt_are_those_of_an_older_version(tmp_path: Path) -> None:
    write(tmp_path, "old", finished_at=5 * DAY)
    write(tmp_path, "older", finished_at=4 * DAY)
    assert latest_records(tmp_path)["t#0"].rollout_id == "old"
    write(tmp_path, "new", attempt=3, finished_at=DAY)
    assert latest_records(tmp_path)["t#0"].rollout_id == "new"


def test_a_job_that_runs_has_a_summary_of_what_has_ended(tmp_path: Path) -> None:
    job = tmp_path / "job"
    write(job, "r1", attempt=1, **SCORED)
    write(job, "r2", attempt=1, slot="t#1", status="cancelled")
    write_old_plan(job, {"t#0": "d", "t#1": "d", "t#2": "d"})
    report = read_job(job)
    assert (report.planned, report.finished, report.scored) == (3, 1, 1)
    assert report.unscored == 2
    assert [task.attempts for task in report.tasks] == [1]
    assert job_directories(tmp_path) == [job]


def test_a_directory_without_a_job_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"has no job\.json and no summary\.json"):
        read_job(tmp_path)
