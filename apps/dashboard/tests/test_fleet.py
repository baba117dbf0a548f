"""Jobs that a Postgres server records appear like those of directories."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import Dispatch, StoreError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, reindex, update_index
from benchflow_store.database import Commit, JobWriter, Location, RunControl, list_jobs
from job_records import PLAN, ended, planned
from litestar.testing import TestClient
from postgres_server import new_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_COLUMNS = (
    "name, job, slot, variant, attempt, status, reason, boundary, error_type, fingerprint, reward,"
    " paid, tokens_in, started, finished, is_final, counts, is_current, has_files"
)


_START = {"job": "night", "index": 3, "attempt": 1, "rollout": "night-3"}


@pytest.fixture
def database(postgres_server: str) -> str:
    return new_database(postgres_server)


async def run_job(location: Location, name: str = "night", home: Path | None = None) -> None:
    """Run a job: scored, failed twice, one that runs, one that is open."""
    async with JobWriter(location, name, home=home) as writer:
        state = await writer.begin(PLAN, planned(4), now=1.0)
        commits = (
            ended(0, reward=0.5),
            ended(1, scored=False),
            ended(1, scored=False, attempt=2, last=True),
        )
        for commit in commits:
            await writer.commit(of_job(commit, name, state.epoch))


def of_job(commit: Commit, job: str, epoch: int) -> Commit:
    """Return an attempt as one of another job."""
    rollout = f"{job}-{commit.completion.rollout}"
    record = {**(commit.completion.record or {}), "rollout_id": rollout}
    changes = {"job": job, "epoch": epoch, "rollout": rollout, "record": record}
    return replace(commit, completion=commit.completion.model_copy(update=changes))


def rows(index: Index, sql: str) -> list[tuple[Any, ...]]:
    with index.read() as session:
        return session.rows(sql)


def dump(path: Path, jobs: Path) -> list[Any]:
    """Return the runs, the jobs and the counters of an index."""
    index = Index(path, jobs)
    columns = "name, status, planned, pending, pruned, variants, baseline, created, problem"
    found = [
        rows(index, f"SELECT {_COLUMNS} FROM runs ORDER BY name"),
        rows(index, f"SELECT {columns} FROM jobs ORDER BY name"),
        rows(index, "SELECT job, status, boundary, n, scored, total FROM totals ORDER BY 1, 2, 3"),
    ]
    index.close()
    return found


def wait_for(check: Callable[[], bool]) -> None:
    """Wait until the dashboard has seen a change."""
    end = time.monotonic() + 40
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_of_the_fleet_has_the_rows_of_a_job_in_a_directory(
    database: str, tmp_path: Path
) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    home = tmp_path / "with" / "night"
    home.mkdir()
    asyncio.run(run_job(home / "record.db"))
    asyncio.run(run_job(database))

    update_index(tmp_path / "with.db", tmp_path / "with")
    update_index(tmp_path / "without.db", tmp_path / "without", database)

    expected = dump(tmp_path / "with.db", tmp_path / "with")
    assert dump(tmp_path / "without.db", tmp_path / "without") == expected
    assert len(expected[0]) == 3


def test_runs_jobs_and_rollouts_of_the_fleet_have_pages(database: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    asyncio.run(run_job(database))
    settings = DashboardSettings(
        jobs_dir=tmp_path / "jobs", index=tmp_path / "i.db", database_url=database
    )
    rollout = of_job(ended(0), "night", 1).completion.rollout
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        wait_for(lambda: rollout in client.get("/runs").text)
        assert client.get("/api/v1/jobs/night").json()["job"]["planned"] == 4
        assert "/jobs/night" in client.get("/jobs").text
        page = client.get(f"/r/{rollout}")
        assert page.status_code == 200
        assert "0.5" in page.text
        assert "another machine" in page.text
        for text in ("cannot draw the tree", f"night/{rollout}", "leaves", 'href="/jobs/night"'):
            assert text in page.text
        assert client.get("/healthz").json()["is_following"]


def test_changes_of_the_fleet_are_followed(database: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    index = Index(tmp_path / "i.db", tmp_path / "jobs", None, database)
    index.watcher.start()
    try:
        asyncio.run(run_job(database))
        sql = "SELECT COUNT(*) FROM runs WHERE job = 'night'"
        wait_for(lambda: rows(index, sql) == [(3,)])
        assert rows(index, "SELECT is_live FROM jobs") == [(1,)]

        running = "SELECT name FROM runs WHERE status = 'running'"

        async def end() -> None:
            async with JobWriter(database, "night") as writer:
                state = await writer.begin()
                slot = planned(1, 3)[0].name
                await writer.start(Dispatch(**{**_START, "slot": slot, "epoch": state.epoch}))
                wait_for(lambda: rows(index, running) == [("night-3",)])
                await writer.commit(of_job(ended(2, epoch=2), "night", state.epoch))
                await writer.set_control(RunControl(status="completed"))

        asyncio.run(end())
        wait_for(lambda: rows(index, "SELECT is_live, status FROM jobs") == [(0, "completed")])
        assert rows(index, sql) == [(5,)]
    finally:
        index.close()


def test_the_record_of_a_directory_goes_before_that_of_the_fleet(
    database: str, tmp_path: Path
) -> None:
    jobs, index = tmp_path / "jobs", tmp_path / "i.db"
    (jobs / "night").mkdir(parents=True)
    asyncio.run(run_job(database))
    (jobs / "night" / "plan.json").write_text('{"slots": [1, 2]}')
    reindex(index, jobs, database)
    assert dump(index, jobs)[1][0][:3] == ("night", "running", 4)

    asyncio.run(run_job(jobs / "night" / "record.db"))
    (jobs / "night" / "plan.json").write_text('{"slots": [1, 2, 3]}')
    reindex(index, jobs, database)
    assert len(dump(index, jobs)[0]) == 3


def test_a_fleet_that_is_left_out_leaves_no_row(database: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    asyncio.run(run_job(database))
    update_index(tmp_path / "i.db", tmp_path / "jobs", database)
    update_index(tmp_path / "i.db", tmp_path / "jobs")

    assert dump(tmp_path / "i.db", tmp_path / "jobs") == [[], [], []]


def test_a_server_that_is_away_is_named_and_the_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "here").mkdir(parents=True)
    (tmp_path / "jobs" / "here" / "plan.json").write_text('{"slots": []}')
    (tmp_path / "jobs" / "here" / "job.json").write_text("{}")
    url = "postgresql://bench:secret@127.0.0.1:1/x"
    index = Index(tmp_path / "i.db", tmp_path / "jobs", None, url)
    index.watcher.start()
    try:
        wait_for(lambda: rows(index, "SELECT name FROM jobs") == [("here",)])
        wait_for(lambda: index.watcher.problem is not None)
        assert "fleet" in str(index.watcher.problem)
        assert "secret" not in str(index.watcher.problem)
    finally:
        index.close()
    with pytest.raises(StoreError):
        update_index(tmp_path / "j.db", tmp_path / "jobs", url)


def test_a_new_database_has_no_job(location: Location) -> None:
    if not isinstance(location, str):
        with pytest.raises(StoreError):
            list_jobs(location)
        return
    assert list_jobs(location) == []
