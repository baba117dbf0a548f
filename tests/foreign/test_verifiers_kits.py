"""The tasks and rewards of verifiers against the conformance kits, with its own packages."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_adapters_verifiers.group import VerifiersGroupReward
from benchflow_adapters_verifiers.host_process import close_hosts
from benchflow_adapters_verifiers.task_rewards import TaskRewards
from benchflow_adapters_verifiers.world import VerifiersTasks
from benchflow_contracts import Evidence, RolloutNode, Step, Task
from benchflow_engine.data_tasks import data_source, load_data_tasks
from benchflow_testing import CheckResult, check_group_reward, check_reward, check_task_source
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]
TASKSETS = Path(__file__).parents[1] / "support" / "verifiers_tasksets"


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the Python of the last version with `load_environment`."""
    packages = ("verifiers==0.3.1", "reasoning-gym==0.1.25", "staros-stardata==0.1.1")
    yield from _use(monkeypatch, install_once(*packages))


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the Python of verifiers 0.4."""
    yield from _use(monkeypatch, install_once("verifiers==0.4.0"))


def _use(monkeypatch: pytest.MonkeyPatch, python: Path) -> Iterator[None]:
    monkeypatch.setenv("BENCHFLOW_VERIFIERS_PYTHON", str(python))
    monkeypatch.setenv("PYTHONPATH", str(TASKSETS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    close_hosts()


def load(source: str) -> Task:
    found = data_source(source)
    assert found is not None
    [task] = load_data_tasks(found)
    return task


def leaf(ident: str, text: str) -> RolloutNode:
    root = RolloutNode(id=f"{ident}.0")
    step = Step(id="s", prompt="Say it.", message=text, started_at=0, finished_at=0)
    return RolloutNode(id=f"{ident}.1", parent=root, step=step)


def source_faults(name: str) -> dict[str, str]:
    """Check the tasks of an environment or a taskset, which is imported before."""
    source = VerifiersTasks()
    source.splits(name)
    return not_passed(asyncio.run(check_task_source(source, name, unreadable="absent")))


def not_passed(results: list[CheckResult]) -> dict[str, str]:
    return {each.name: each.reason for each in results if each.status != "passed"}


@pytest.mark.usefixtures("old")
def test_the_rows_of_an_environment_are_a_source_of_tasks_that_keeps_every_promise() -> None:
    assert source_faults("old_words") == {}


@pytest.mark.usefixtures("new")
@pytest.mark.parametrize("taskset", ["add_up", "count_words"])
def test_a_taskset_is_a_source_of_tasks_that_keeps_every_promise(taskset: str) -> None:
    assert source_faults(taskset) == {}


@pytest.mark.usefixtures("old")
def test_the_reward_of_a_rubric_over_a_group_keeps_every_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENCHFLOW_VERIFIERS_ARGS", json.dumps({"compares": True}))
    task = load("verifiers://old_words?split=train&index=0")

    def leaves() -> list[RolloutNode]:
        return [leaf("a", "five words"), leaf("b", "5"), leaf("c", "7")]

    results = asyncio.run(check_group_reward(VerifiersGroupReward(), task, leaves))
    assert not_passed(results) == {}


@pytest.mark.usefixtures("new")
def test_the_rewards_of_a_task_keep_every_promise() -> None:
    task = load("verifiers://add_up?index=0")
    results = asyncio.run(
        check_reward(TaskRewards(), lambda: leaf("a", "7"), lambda: Evidence(task=task))
    )
    assert not_passed(results) == {}
