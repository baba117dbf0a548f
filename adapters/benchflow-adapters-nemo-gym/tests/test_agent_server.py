"""Our agents as an agent server: rows in, responses with tokens and rewards out."""

from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_nemo_gym.agent_server import create_agent_app, step_items
from benchflow_contracts import ModelCall, Observation, Step, ToolCall, UsageError
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from litestar.testing import TestClient


def call(name: str, *, logprobs: tuple[float, ...] = (-0.5, -0.25), **more: Any) -> ModelCall:
    fields: dict[str, Any] = {
        "id": name,
        "node": "n",
        "api": "openai-chat",
        "request": {},
        "status": 200,
        "prompt_token_ids": (1, 2),
        "completion_token_ids": (3, 4),
        "logprobs": logprobs,
        "started_at": 0,
        "finished_at": 0,
        **more,
    }
    return ModelCall.model_validate(fields)


def step(*calls: str, message: str = "", tool: bool = False) -> Step:
    tools = (ToolCall(id="t", title="bash", name="bash", raw_input={"command": "ls"}),)
    seen = (Observation(tool_call_id="t", status="completed", content="file"),)
    return Step(
        id="s",
        reasoning="I think.",
        message=message,
        tool_calls=tools if tool else (),
        observations=seen if tool else (),
        model_calls=calls,
        started_at=0,
        finished_at=0,
    )


def test_the_last_sampled_item_of_a_step_has_the_tokens_of_its_call() -> None:
    steps = [step("a", message="I look.", tool=True), step("b", message="Done.")]
    items = step_items(steps, {"a": call("a"), "b": call("b", completion_token_ids=(5, 6))})
    kinds = [item["type"] for item in items]
    looked = ["reasoning", "message", "function_call", "function_call_output"]
    assert kinds == [*looked, "reasoning", "message"]
    tokens = [item.get("generation_token_ids") for item in items]
    assert tokens == [None, None, [3, 4], None, None, [5, 6]]
    assert items[2]["prompt_token_ids"] == [1, 2]
    assert items[2]["generation_log_probs"] == [-0.5, -0.25]
    assert items[2]["arguments"] == '{"command": "ls"}'
    assert items[3]["output"] == "file"


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [call("a", logprobs=(-0.5,))],
        [call("a", completion_token_ids=None)],
        [call("a", error="lost")],
        [call("a"), call("b")],
    ],
)
def test_a_step_whose_tokens_are_not_complete_has_none(calls: list[ModelCall]) -> None:
    given = {each.id: each for each in calls}
    items = step_items([step(*given, message="Done.")], given)
    assert all("generation_token_ids" not in item for item in items)


def test_a_call_beside_the_work_of_the_agent_has_no_tokens_in_the_items() -> None:
    given = {"title": call("title", purpose="aux"), "a": call("a")}
    items = step_items([step(*given, message="Done.")], given)
    assert items[-1]["generation_token_ids"] == [3, 4]


def test_a_row_is_played_and_comes_back_with_its_reward(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    task = runnable_task(tmp_path / "task")
    config = RunConfig(sandbox=SandboxConfig(provider="local"))
    app = create_agent_app([task], config, jobs_dir=tmp_path / "jobs")
    row = {"verifier_metadata": {"task_id": task.id}, "_ng_task_index": 0, "kept": [1]}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        reply = client.post("/run", json=row)
        assert reply.status_code == 200
        result = reply.json()
        assert {key: result[key] for key in row} == row
        assert result["reward"] == 1.0
        assert result["response"]["object"] == "response"
        assert (tmp_path / "jobs" / result["rollout_id"]).is_dir()
        assert client.post("/run", json={}).status_code == 400
        asked = {"input": "ignored", "metadata": {"task_id": task.id}}
        response = client.post("/v1/responses", json=asked)
        assert (response.status_code, response.json()["object"]) == (200, "response")
        assert client.post("/v1/responses", json={"input": "x"}).status_code == 400
        metrics = client.post("/aggregate_metrics", json={"verify_responses": [result]}).json()
        assert metrics["key_metrics"] == {"mean/reward": 1.0}


def test_a_rollout_without_a_reward_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "task/tests/test.sh").write_text("#!/bin/sh\nexit 1\n")
    task = runnable_task(tmp_path / "task")
    config = RunConfig(sandbox=SandboxConfig(provider="local"))
    app = create_agent_app([task], config, jobs_dir=tmp_path / "jobs")
    row = {"verifier_metadata": {"task_id": task.id}}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        reply = client.post("/run", json=row)
    assert reply.status_code == 503
    assert "no reward" in reply.json()["error"]


def test_a_configuration_that_forks_and_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    task = runnable_task(tmp_path / "task")
    with pytest.raises(UsageError, match="same id"):
        create_agent_app([task, task], RunConfig(), jobs_dir=tmp_path)
    forking = RunConfig.model_validate({"branch": {"kind": "group"}})
    with pytest.raises(UsageError, match="one rollout"):
        create_agent_app([task], forking, jobs_dir=tmp_path)
