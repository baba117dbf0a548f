"""An error that nobody expected: the pages say so, and the index follows again."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts import StoreError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import job_database, watcher
from benchflow_dashboard.index.follow import Follower
from benchflow_dashboard.index.job_database import (
    JobDatabaseChanges,
    JobDatabasePoller,
    JobDatabaseReader,
)
from benchflow_dashboard.monitor.codec import SpanRow
from benchflow_dashboard.monitor.config import MonitorConfig
from benchflow_dashboard.monitor.database import MonitorDatabase
from benchflow_dashboard.monitor.service import MonitorService
from benchflow_store.database import Location
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


@pytest.mark.parametrize("part", ["keep_spans", "tidy", "close"])
@pytest.mark.parametrize("error", [StoreError("of a test"), ZeroDivisionError("of a test")])
def test_no_error_of_the_database_lets_later_senders_wait(
    location: Location, monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
) -> None:
    service = MonitorService(location, MonitorConfig())
    first, second = (SpanRow("t", name, None, 1, 2, True, "x") for name in "ab")

    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        for name in {part, "tidy"}:
            broken.setattr(MonitorDatabase, name, fail)
        if part == "keep_spans":
            with pytest.raises(StoreError, match="of a test"):
                asyncio.run(service.writer.store([first]))
        else:
            asyncio.run(service.writer.store([first]))
        # The thread has met each error when it has taken the next batch.
        with suppress(StoreError):
            asyncio.run(service.writer.store([second]))
    asyncio.run(service.writer.store([first, second]))
    assert service.reader.query("SELECT count(*) FROM monitor_spans") == [(2,)]
    service.close()
