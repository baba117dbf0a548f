"""A job is resumed as the job that it was planned to be."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_engine.flags import run_config
from benchflow_engine.model_endpoint import ModelEndpointError
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobOptions, run_job
from benchflow_jobs.plan import JobPlan, settle_plan


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


def plan(tasks: Path, **changes: object) -> JobPlan:
    options = JobOptions(tasks_dir=tasks, run=run_config(agent="nop")).model_copy(update=changes)
    return JobPlan.of(options.plan(), options)


def test_the_same_plan_settles_any_number_of_times(tasks: Path, tmp_path: Path) -> None:
    for _ in range(3):
        settle_plan(tmp_path, plan(tasks))
    assert JobPlan.model_validate_json((tmp_path / "job.json").read_bytes()) == plan(tasks)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"run": run_config(agent="oracle")}, "agent.name was 'nop' and is 'oracle'"),
        ({"run": run_config(agent="nop", isolation="shared")}, "isolation was None"),
        ({"repeats": 2}, "it had 2 rollouts"),
        ({"include": ("one",)}, "it had 2 rollouts"),
    ],
)
def test_another_plan_is_refused(
    tasks: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    settle_plan(tmp_path, plan(tasks))
    with pytest.raises(UsageError, match=says):
        settle_plan(tmp_path, plan(tasks, **changes))


def test_a_changed_task_is_refused(tasks: Path, tmp_path: Path) -> None:
    settle_plan(tmp_path, plan(tasks))
    (tasks / "two" / "instruction.md").write_text("Something else.\n")
    with pytest.raises(UsageError, match="'two#0' changed"):
        settle_plan(tmp_path, plan(tasks))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda run: run["sandbox"].pop("pull"), r"with other settings: sandbox\.pull"),
        (lambda run: run.update(gone=1), "with other settings: gone"),
    ],
)
def test_a_plan_of_a_version_with_other_options_is_refused_as_that(
    tasks: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    settle_plan(tmp_path, plan(tasks))
    path = tmp_path / "job.json"
    written = json.loads(path.read_text())
    change(written["run"])
    path.write_text(json.dumps(written))
    with pytest.raises(UsageError, match=says) as caught:
        settle_plan(tmp_path, plan(tasks))
    assert caught.value.where == str(path)
    assert "the version that planned the job" in caught.value.hint


def test_a_damaged_plan_is_named(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(StoreError, match=r"job\.json"):
        settle_plan(tmp_path, plan(tasks))


def test_a_job_whose_endpoint_is_away_makes_no_directory(tasks: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    run = run_config(agent="policy", base_url=url, model="m")
    options = JobOptions(tasks_dir=tasks, run=run, jobs_dir=tmp_path / "jobs", job_name="j")
    with pytest.raises(ModelEndpointError):
        asyncio.run(run_job(options))
    assert not (tmp_path / "jobs").exists()
