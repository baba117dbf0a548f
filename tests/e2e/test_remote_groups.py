"""A trainer gets groups from a `bench serve` in another process, through RemoteGroups."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_trainers import RemoteGroups
from benchflow_contracts import UsageError
from benchflow_export import TrainerOptions
from benchflow_serve_client import ModelEndpoint, RolloutRequest, ServeClient
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, book_the_review
from serve_process import Server, serving

TASK = "clawsbench/book-the-review-room"
OPTIONS = TrainerOptions(advantage="process", counterfactual=True)


def client_of(server: Server) -> ServeClient:
    token = server.client.headers["Authorization"].removeprefix("Bearer ")
    return ServeClient(str(server.client.base_url), token)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds. The caller limits the time."""
    while not await holds():  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.02)


def groups_of(client: ServeClient, llm: ScriptedLlm, **more: Any) -> RemoteGroups:
    endpoint = ModelEndpoint(url=f"{llm.url}/v1", model="scripted")
    return RemoteGroups(client, [TASK], policy="mine", endpoint=endpoint, **more)


@pytest.mark.timeout(300)
def test_a_remote_group_has_the_samples_and_advantages_of_its_trees(tmp_path: Path) -> None:
    async def check(server: Server, llm: ScriptedLlm) -> None:
        async with client_of(server) as client:
            branch = RolloutRequest(task=TASK, branch={"kind": "ask-user"})
            remote = groups_of(client, llm, rollout=branch, options=OPTIONS, leaves_per_rollout=3)
            with pytest.raises(UsageError, match="unknown task"):
                await remote.request("other", 1)
            remote.set_policy_version(5)
            group = await remote.request(TASK, 3)
            assert sorted(sample.reward for sample in group.samples) == [0.0, 0.25, 1.0]
            assert (group.policy_version, group.excluded) == (5, ())
            assert {v for s in group.samples for v in s.policy_versions} == {"5"}
            assert all(sample.advantages["process"] for sample in group.samples)
            # Read results are acknowledged. A restart forgets the policy, and not the trainer.
            assert (await client.capacity()).unacknowledged == 0
        server.kill()
        server.start()
        async with client_of(server) as client:
            again = groups_of(client, llm, rollout=branch, options=OPTIONS, leaves_per_rollout=3)
            again.set_policy_version(5)
            assert len((await again.request(TASK, 3)).samples) == 3

    with (
        ScriptedLlm(book_the_review) as llm,
        serving(tmp_path / "s", "--agent", "policy") as server,
    ):
        asyncio.run(check(server, llm))


PLACES = """
from benchflow_contracts import VerifyResult


class Places:
    name = "reward"

    async def score_group(self, task, leaves):
        return [VerifyResult(reward=float(at)) for at, _ in enumerate(leaves, 1)]
"""


@pytest.mark.timeout(300)
def test_a_trainer_gets_the_verdicts_of_the_group_reward_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "places_of_all.py").write_text(PLACES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    async def check(server: Server, llm: ScriptedLlm) -> None:
        async with client_of(server) as client:
            group = await groups_of(client, llm, options=OPTIONS).request(TASK, 3)
            assert sorted(sample.reward for sample in group.samples) == [1.0, 2.0, 3.0]

    words = ("--agent", "policy", "--group-reward-import-path", "places_of_all:Places")
    with (
        ScriptedLlm(book_the_review) as llm,
        serving(tmp_path / "s", *words) as server,
    ):
        asyncio.run(check(server, llm))


@pytest.mark.timeout(300)
def test_a_cancelled_request_removes_its_sandboxes_and_new_weights_reach_what_runs(
    tmp_path: Path,
) -> None:
    def think(request: ModelRequest) -> ModelReply:
        time.sleep(20 if request.tool_results else 0)
        return book_the_review(request)

    async def check(server: Server, llm: ScriptedLlm) -> None:
        async with client_of(server) as client:
            remote = groups_of(client, llm)

            async def has_version_8() -> bool:
                return (await client.policy("mine")).version == "8"

            async def calls_twice() -> bool:
                return len(llm.requests) >= 2

            async with asyncio.timeout(100), asyncio.TaskGroup() as group:
                request = group.create_task(remote.request(TASK, 1))
                await until(calls_twice)
                remote.set_policy_version(8)
                await until(has_version_8)
                request.cancel()
            assert request.cancelled()
            capacity = await client.capacity()
            assert (capacity.running, capacity.sandboxes) == (0, 0)

    with ScriptedLlm(think) as llm, serving(tmp_path / "s", "--agent", "policy") as server:
        asyncio.run(check(server, llm))
