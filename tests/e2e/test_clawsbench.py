"""Every task of the benchmark: doing nothing earns 0, the solution earns 1."""

from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"


@pytest.mark.parametrize("task", sorted(p.parent.name for p in TASKS.glob("*/task.toml")))
def test_nop_earns_nothing_and_the_oracle_earns_everything(bench: Any, task: str) -> None:
    rows = bench("tasks", "check", TASKS / task, "--json")
    assert {row["agent"]: row["reward"] for row in rows} == {"nop": 0.0, "oracle": 1.0}


def test_there_are_at_least_five_tasks() -> None:
    assert len(list(TASKS.glob("*/task.toml"))) >= 5


def test_a_job_sums_up_all_tasks_and_is_resumed_without_running_again(bench: Any) -> None:
    args = ("eval", "create", "--tasks-dir", TASKS, "--agent", "nop", "--job-name", "floor")
    report = bench(*args, "--json")
    assert report["scored"] == report["planned"] >= 5
    assert report["mean_reward"] == 0.0
    first = {record["rollout_id"] for record in report["records"]}
    again = bench(*args, "--json")
    assert {record["rollout_id"] for record in again["records"]} == first
    bench(*args, "--fail-under", "0.5", code=1)
