"""Run rollouts through the `EnvClient` of verifiers 0.4.0, in an environment of its own.

`python check_env_client.py ADDRESS MODEL TASK ENDPOINT SIZE [WAITING_TASK]` prints a JSON object of
what a trainer would see of a group of SIZE runs, and of a run that it cancels.
"""

import asyncio
import json
import sys
from typing import Any

from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.serve import EnvClient
from verifiers.v1.task import Task, WireTaskData
from verifiers.v1.types import SamplingConfig


def seen(episode: Any, task: Task) -> dict[str, Any]:
    """Return what the package makes of one episode."""
    assert (episode.task.key, episode.task.hash) == (task.key, task.hash), "a trainer refuses it"
    traces = []
    for trace in episode.traces:
        assert (trace.task.key, trace.task.hash) == (task.key, task.hash)
        for node in trace.nodes:
            assert len(node.mask) == len(node.token_ids)
            assert len(node.logprobs) == sum(node.mask)
        (branch,) = trace.branches
        experts = branch.routed_experts
        traces.append(
            {
                "reward": trace.reward,
                "token_ids": branch.token_ids,
                "mask": branch.sampled_mask,
                "logprobs": branch.logprobs,
                "advantages": branch.advantages,
                "experts": None if experts is None else experts[:, :, 0].tolist(),
                "versions": trace.info["benchflow"]["policy_versions"],
                "is_truncated": trace.is_truncated,
            }
        )
    errors = [f"{each.type}: {each.message}" for each in episode.errors]
    return {"id": episode.id, "ok": episode.ok, "errors": errors, "traces": traces}


async def main() -> None:
    address, model, name, url, size = sys.argv[1:6]
    client = EnvClient(address)
    await client.wait_for_server_startup(timeout=30)
    data = WireTaskData(id=name, prompt="Do it.", idx=3, difficulty={"level": None})
    task = Task(data)
    config = TrainClientConfig(base_url=url, api_key_var="NO_SUCH_KEY")
    deltas: list[dict[str, Any]] = []

    def run(task_data: dict[str, Any]) -> Any:
        return client.run(
            config, model, SamplingConfig(temperature=1.0), task_data, on_delta=deltas.append
        )

    wire = data.model_dump(mode="json")
    async with asyncio.TaskGroup() as tasks:
        group = [tasks.create_task(run(wire)) for _ in range(int(size))]
        if len(sys.argv) > 6:
            waiting = tasks.create_task(run({**wire, "id": sys.argv[6]}))
            print("waiting", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            waiting.cancel()
            # One more request behind the cancellation, which the server reads first.
            assert await client.health()
    episodes = [seen(each.result(), task) for each in group]
    await client.close()
    print(json.dumps({"episodes": episodes, "deltas": len(deltas)}))


asyncio.run(main())
