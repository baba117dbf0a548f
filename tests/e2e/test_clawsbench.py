"""Every task of the benchmark: doing nothing earns 0, the solution earns 1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"


@pytest.fixture(scope="module")
def run_job(
    bench_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Run all tasks once with an agent, or resume this job."""
    cwd = tmp_path_factory.mktemp("jobs")

    def run(agent: str, *flags: object, code: int = 0) -> Any:
        job = ("--tasks-dir", TASKS, "--agent", agent, "--job-name", agent)
        return bench_in(cwd, "eval", "create", *job, *flags, code=code)

    return run


@pytest.fixture(scope="module")
def reports(run_job: Callable[..., Any]) -> dict[str, Any]:
    return {agent: run_job(agent, "--json") for agent in ("nop", "oracle")}


@pytest.mark.parametrize("task", sorted(p.parent.name for p in TASKS.glob("*/task.toml")))
def test_nop_earns_nothing_and_the_oracle_earns_everything(
    reports: dict[str, Any], task: str
) -> None:
    rewards = {
        agent: [each["reward"] for each in report["records"] if each["slot"].endswith(f"{task}#0")]
        for agent, report in reports.items()
    }
    assert rewards == {"nop": [0.0], "oracle": [1.0]}


def test_there_are_at_least_five_tasks() -> None:
    assert len(list(TASKS.glob("*/task.toml"))) >= 5


def test_a_job_sums_up_all_tasks_and_is_resumed_without_running_again(
    reports: dict[str, Any], run_job: Callable[..., Any]
) -> None:
    report = reports["nop"]
    assert report["scored"] == report["planned"] >= 5
    assert report["mean_reward"] == 0.0
    first = {record["rollout_id"] for record in report["records"]}
    again = run_job("nop", "--json")
    assert {record["rollout_id"] for record in again["records"]} == first
    run_job("nop", "--fail-under", "0.5", code=1)
