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
from benchflow_engine.secrets import recorded_config
from benchflow_jobs import JobOptions, run_job
from benchflow_jobs.begin import PlannedJob, plan_of, planned_before, settle_plan
from benchflow_jobs.planning import extend, load_plan, write_plan
from old_job import write_old_plan


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


def plan(tasks: Path, **changes: object) -> PlannedJob:
    options = JobOptions(tasks_dir=tasks, run=run_config(agent="nop")).model_copy(update=changes)
    return plan_of(options)


def test_the_same_plan_settles_any_number_of_times(tasks: Path, tmp_path: Path) -> None:
    for _ in range(3):
        settle_plan(tmp_path, plan(tasks))
    written = load_plan(tmp_path)
    assert written is not None
    assert written.digest == plan(tasks).plan.digest


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"run": run_config(agent="oracle")}, "agent.name was 'nop' and is 'oracle'"),
        ({"run": run_config(agent="nop", isolation="shared")}, "isolation was None"),
        ({"repeats": 2}, "it had 2 rollouts"),
        ({"include": ("one",)}, "it had 2 tasks"),
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
    with pytest.raises(UsageError, match="'two' changed"):
        settle_plan(tmp_path, plan(tasks))
    with pytest.raises(UsageError, match="'two' changed"):
        planned_before(tmp_path)


def test_an_extended_plan_is_the_one_that_is_resumed(tasks: Path, tmp_path: Path) -> None:
    first = plan(tasks, run=run_config(agent="nop", agent_env={"TOKEN": "s3cret-of-all"}))
    settle_plan(tmp_path, first)
    write_plan(tmp_path, extend(first.plan, replications=3))
    resumed = settle_plan(tmp_path, first)
    assert len(resumed.plan.slots) == 6
    assert resumed.plan.variants == first.plan.variants
    assert resumed.tasks == first.tasks


def test_a_plan_that_somebody_changed_is_not_run_without_trust(tasks: Path, tmp_path: Path) -> None:
    settle_plan(tmp_path, plan(tasks))
    assert planned_before(tmp_path).tasks == plan(tasks).tasks
    path = tmp_path / "job.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "seal": "0" * 64}))
    with pytest.raises(UsageError, match="was changed, or made by another user"):
        planned_before(tmp_path)
    assert planned_before(tmp_path, trust=True).tasks == plan(tasks).tasks


def test_a_plan_of_version_0_8_needs_the_command_that_made_it(tasks: Path, tmp_path: Path) -> None:
    planned = plan(tasks)
    slots = {slot.name: slot.task_digest for slot in planned.plan.slots}
    write_old_plan(tmp_path, slots, recorded_config(run_config(agent="nop")))
    assert settle_plan(tmp_path, planned) is planned
    with pytest.raises(UsageError, match="does not say where task 'one' is"):
        planned_before(tmp_path, trust=True)


@pytest.mark.parametrize(
    "change",
    [lambda run: run["sandbox"].pop("pull"), lambda run: run.update(gone=1)],
    ids=["a setting is missing", "a setting is unknown"],
)
def test_a_plan_of_a_version_with_other_settings_is_refused(
    tasks: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    settle_plan(tmp_path, plan(tasks))
    path = tmp_path / "job.json"
    written = json.loads(path.read_text())
    change(written["variants"]["default"]["run"])
    written["revisions"][-1]["digest"] = "sha256:0"
    path.write_text(json.dumps(written))
    with pytest.raises(StoreError, match="another version of BenchFlow") as caught:
        settle_plan(tmp_path, plan(tasks))
    assert caught.value.where == str(path)


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
