"""Episodes as tasks, without Gymnasium's package."""

import asyncio

import pytest
from benchflow_adapters_gymnasium.tasks import episode_task, gymnasium_tasks
from benchflow_testing import check_task_source


@pytest.mark.parametrize("address", ["CartPole-v1", "ALE/Pong-v5", "???"])
def test_each_seed_is_one_task(address: str) -> None:
    source = gymnasium_tasks()
    (split,) = source.splits(address)
    assert split.size is None
    tasks = source.tasks(address, split.name, start=3, limit=4)
    assert [task.seed for task in tasks] == [3, 4, 5, 6]
    assert len({task.config.name for task in tasks}) == 4
    assert {task.config.environment.options["id"] for task in tasks} == {address}


def test_the_source_passes_the_conformance_kit() -> None:
    results = asyncio.run(check_task_source(gymnasium_tasks(), "CartPole-v1"))
    assert [(each.name, each.reason) for each in results if each.status == "failed"] == []


def test_options_of_an_episode_are_options_of_its_environment() -> None:
    task = episode_task("CartPole-v1", 0, max_episode_steps=5)
    assert task.config.environment.options == {"id": "CartPole-v1", "max_episode_steps": 5}
