"""A trainer's request runs rollouts side by side; what is lost has a name."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchflow_contracts import CapacityError, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.live_groups import LiveGroups
from benchflow_engine.scaffold import write_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    write_task(tmp_path / "tidy-up")
    return tmp_path / "tidy-up"


class Runs:
    """Stands in for `run`: counts what runs at a time, and fails as it is asked to."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.outcomes = list(outcomes)
        self.now = 0
        self.most = 0
        self.ended = 0

    async def __call__(self, task: Any, *, config: RunConfig, jobs_dir: Path) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            if self.outcomes and (error := self.outcomes.pop()) is not None:
                raise error
            return SimpleNamespace(directory=None)
        finally:
            self.now -= 1
            self.ended += 1


def groups(task: Path, runs: Runs, **more: Any) -> LiveGroups:
    return LiveGroups(RunConfig(), [task], task.parent / "jobs", run_task=runs, **more)


def test_a_request_runs_as_many_rollouts_as_its_leaves_need_and_no_more_at_a_time(
    task: Path,
) -> None:
    runs = Runs()
    server = groups(task, runs, at_once=2, leaves_per_rollout=2)
    server.set_policy_version(7)
    [task_id] = server.task_ids
    group = asyncio.run(server.request(task_id, 7))
    assert (runs.ended, runs.most) == (4, 2)
    assert group.policy_version == 7
    assert [str(leaf) for leaf in group.excluded] == [
        "a rollout: failed: the rollout has no record"
    ] * 4


def test_a_fault_of_one_rollout_is_a_lost_leaf_and_one_of_all_is_raised(task: Path) -> None:
    runs = Runs(CapacityError("no room"), None)
    server = groups(task, runs)
    [task_id] = server.task_ids
    group = asyncio.run(server.request(task_id, 2))
    assert {leaf.detail for leaf in group.excluded} == {
        "sandbox: no room",
        "the rollout has no record",
    }
    with pytest.raises(UsageError, match="no such model"):
        asyncio.run(groups(task, Runs(UsageError("no such model"), None)).request(task_id, 2))
    with pytest.raises(UsageError, match="unknown task 'other'"):
        asyncio.run(server.request("other", 1))
    with pytest.raises(UsageError, match="at_once is 0"):
        groups(task, runs, at_once=0)
