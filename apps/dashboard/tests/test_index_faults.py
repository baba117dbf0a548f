"""An error that nobody expected: the pages say so, and the index follows again."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import job_database, watcher
from benchflow_dashboard.index.follow import Follower
from benchflow_dashboard.index.job_database import (
    JobDatabaseChanges,
    JobDatabasePoller,
    JobDatabaseReader,
)
from litestar.testing import TestClient


def test_an_unexpected_error_is_shown_and_the_index_follows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(watcher, "_RETRY_SEC", 0.05)
    app = create_app(DashboardSettings(jobs_dir=tmp_path / "jobs", index=tmp_path / "index.db"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        until(lambda: client.get("/healthz").json()["status"] == "ok")
        with monkeypatch.context() as broken:
            broken.setattr(Follower, "update", failing)
            until(lambda: client.get("/healthz").json()["status"] == "stale")
            assert "ZeroDivisionError: of a test" in client.get("/runs").text
        until(lambda: client.get("/healthz").json()["is_following"])


def test_an_unexpected_error_does_not_end_the_reader_of_a_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_database, "_RETRY_SEC", 0.01)
    monkeypatch.setattr(JobDatabaseReader, "read", failing)
    poller = JobDatabasePoller("nowhere", poll_sec=0.01)
    poller.start()
    try:
        until(lambda: "ZeroDivisionError" in (poller.problem or ""))
        monkeypatch.setattr(JobDatabaseReader, "read", nothing)
        until(lambda: poller.problem is None)
        assert poller.changes()
    finally:
        poller.stop()


def failing(*_: object) -> None:
    """Fail as no code of an index does."""
    raise ZeroDivisionError("of a test")


def nothing(_: JobDatabaseReader) -> JobDatabaseChanges:
    """Read no job."""
    return JobDatabaseChanges(frozenset(), {})


def until(check: Callable[[], bool]) -> None:
    """Wait until the thread has come that far."""
    end = time.monotonic() + 40
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)
