"""Reports are counted once for each state of the index."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchflow_dashboard import DashboardSettings
from benchflow_dashboard.index import Index, reindex
from benchflow_dashboard.index.database import IndexSession
from made_rollouts import write_rollout
from made_trees import tree_of_climbs


class Counted:
    """A report that knows how often it was counted."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, session: IndexSession) -> int:
        self.times += 1
        return int(session.rows("SELECT COUNT(*) FROM runs")[0][0])


@pytest.fixture
def index(settings: DashboardSettings) -> Generator[Index]:
    reindex(settings.index_path(), settings.jobs_dir)
    opened = Index(settings.index_path(), settings.jobs_dir)
    yield opened
    opened.close()


def test_a_report_is_counted_again_only_after_a_change(
    index: Index, settings: DashboardSettings
) -> None:
    report = Counted()
    assert [index.report("runs", report).result for _ in range(3)] == [0, 0, 0]
    assert report.times == 1
    write_rollout(tree_of_climbs([2]), settings.jobs_dir / "night" / "made__1")
    followed = threading.Event()
    index.watcher.on_change(followed.set)
    index.watcher.start()
    assert followed.wait(60)
    index.watcher.stop()
    assert [index.report("runs", report).result for _ in range(3)] == [1, 1, 1]
    assert report.times == 2


def test_readers_of_one_report_at_once_count_it_once(index: Index) -> None:
    report = Counted()
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(index.report, "runs", report) for _ in range(40)]
        assert {each.result().result for each in found} == {0}
    assert report.times == 1


def test_reports_are_dropped_when_there_are_too_many(index: Index) -> None:
    first = Counted()
    index.report("first", first)
    for number in range(100):
        index.report(number, Counted())
    index.report("first", first)
    assert first.times == 2


def test_a_report_that_fails_is_counted_again(index: Index) -> None:
    def broken(session: IndexSession) -> int:
        return int(session.rows("SELECT 1 / 0")[0][0])

    with pytest.raises(TypeError):
        index.report("runs", broken)
    assert index.report("runs", Counted()).result == 0
