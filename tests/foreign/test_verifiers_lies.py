"""Environments of verifiers that lie, or that BenchFlow does not run: never a reward of zero.

One process of verifiers serves all tests. `nox -s foreign` runs them.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_adapters_verifiers.host_process import close_hosts
from benchflow_adapters_verifiers.world import VerifiersClient, VerifiersTasks
from benchflow_contracts import DataTask, EnvironmentError_, TaskError
from benchflow_env_outside import Conversation, WorldAnswer
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]
TASKSETS = Path(__file__).parents[1] / "support" / "verifiers_tasksets"


@pytest.fixture(scope="module", autouse=True)
def _python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        python = install_once("verifiers==0.4.0")
        patch.setenv("BENCHFLOW_VERIFIERS_PYTHON", str(python))
        patch.setenv("PYTHONPATH", str(TASKSETS))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
        close_hosts()


@pytest.fixture(scope="module")
def lies(_python: None) -> dict[str, DataTask]:
    """Return the tasks of the taskset that lies, by their kind."""
    tasks = VerifiersTasks().tasks("lying_tasks", None, start=0, limit=20)
    return {task.data["data"]["kind"]: task for task in tasks}


async def verdict(task: DataTask, ident: str = "lying_tasks") -> WorldAnswer:
    """Answer the task at once; return the verdict of the world."""
    client = VerifiersClient(ident, {})
    try:
        await client.open(task.data, 0)
        return await client.finish(Conversation((), ()))
    finally:
        await client.close()


def test_an_honest_task_gets_its_reward(lies: dict[str, DataTask]) -> None:
    assert asyncio.run(verdict(lies["honest"])).reward == 0.5


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("nan", "nan"),
        ("infinite", "inf"),
        ("raises", "a defect of the reward function"),
        ("words", "of verifiers"),
        ("ends", "is gone"),
    ],
)
def test_a_lie_is_an_error_and_never_a_reward(
    lies: dict[str, DataTask], kind: str, problem: str
) -> None:
    with pytest.raises(EnvironmentError_, match=problem):
        asyncio.run(verdict(lies[kind]))


def test_a_task_that_is_named_by_a_path_has_a_plain_name(lies: dict[str, DataTask]) -> None:
    task = lies["path"]
    assert task.config.name == "lying_tasks/all-6"
    assert asyncio.run(verdict(task)).reward == 0.5


def test_a_prompt_of_megabytes_is_cut_by_the_session(lies: dict[str, DataTask]) -> None:
    assert asyncio.run(verdict(lies["long"])).reward == 0.5


@pytest.mark.parametrize(
    ("ident", "where"),
    [("two_seats", "verifiers:env.black"), ("in_a_box", "verifiers:task.data.image")],
)
def test_what_benchflow_does_not_run_is_refused_by_its_field(ident: str, where: str) -> None:
    with pytest.raises(TaskError) as refused:
        VerifiersTasks().tasks(ident, None, start=0, limit=1)
    assert refused.value.where == where
