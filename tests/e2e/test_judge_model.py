"""A reward asks the judge's model: recorded, counted apart, and never a score after a failure."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_contracts import Evidence, Reward, RolloutNode, VerifyResult
from benchflow_engine.config import RunConfig
from benchflow_engine.rollout import RunResult, run_in
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_export import steps_to_messages
from benchflow_store import StoredRollout
from benchflow_testing import check_reward
from benchflow_testing.fakes import FakeSandboxProvider
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm


class Critic:
    """Asks the judge for a number, and believes that any failure means 0."""

    name = "reward"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        judge = evidence.require_judge(self.name)
        chat = [*steps_to_messages(node.steps), {"role": "user", "content": "Grade from 0 to 1."}]
        body = {"model": "a-name-of-the-reward", "messages": chat}
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{judge.endpoint.url}/chat/completions", json=body)
        if answer.status_code != 200:
            return VerifyResult(reward=0)
        return VerifyResult(reward=float(answer.json()["choices"][0]["message"]["content"]))


class TwiceCritic(Critic):
    """Asks twice, and returns 1 whatever the answers are."""

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        await super().score(node, evidence)
        await super().score(node, evidence)
        return VerifyResult(reward=1)


def grade(request: ModelRequest) -> ModelReply:
    return ModelReply(text="0.75")


def judged_run(
    tmp_path: Path, url: str, *, reward: Reward | None = None, **judge: Any
) -> RunResult:
    write_task(tmp_path / "task")
    table = {"base_url": f"{url}/v1", "model": "judge-1", "usd_per_mtok": [1000, 2000], **judge}
    config = RunConfig.model_validate({"judge": table, "agent": {"name": "nop"}})
    task, rewards = runnable_task(tmp_path / "task"), [reward or Critic()]
    rollout = run_in(
        FakeSandboxProvider(),
        task,
        config,
        directory=tmp_path / "rollout",
        prepare=lambda planes: replace(planes, rewards=rewards),
    )
    return asyncio.run(rollout)


def test_the_calls_of_a_reward_are_recorded_and_their_cost_is_not_that_of_the_agent(
    tmp_path: Path,
) -> None:
    with ScriptedLlm(grade) as llm:
        result = judged_run(tmp_path, llm.url)
    assert result.reward == 0.75
    (request,) = llm.requests
    assert request.model == "judge-1"
    stored = StoredRollout(tmp_path / "rollout")
    assert dict(stored.calls) == {}
    (file,) = (tmp_path / "rollout" / "judge").rglob("*.jsonl")
    (call,) = map(json.loads, file.read_text().splitlines())
    assert call["request"]["messages"][-1]["content"] == "Grade from 0 to 1."
    used = result.record.judge
    assert used is not None
    assert used.calls == 1
    cost = (used.usage.input_tokens * 1000 + used.usage.output_tokens * 2000) / 1e6
    assert used.cost_usd == pytest.approx(cost)
    assert cost > 0
    (leaf,) = stored.tree.leaves
    assert leaf.results["reward"].judge == used


def test_a_reward_that_takes_a_failed_call_for_0_gives_no_reward(tmp_path: Path) -> None:
    def fail(request: ModelRequest) -> ModelReply:
        raise ValueError("the model is broken")

    with ScriptedLlm(fail) as llm:
        result = judged_run(tmp_path, llm.url)
    assert result.reward is None
    assert result.record.error is not None
    assert result.record.error.type == "JudgeError"
    assert result.record.error.retryable


def test_an_endpoint_that_is_gone_gives_no_reward(tmp_path: Path) -> None:
    with ScriptedLlm(grade) as llm:
        url = llm.url
    result = judged_run(tmp_path, url)
    assert result.reward is None
    assert result.record.error is not None
    assert result.record.error.type == "JudgeError"


def test_a_call_over_the_limit_gives_no_reward(tmp_path: Path) -> None:
    with ScriptedLlm(grade) as llm:
        result = judged_run(tmp_path, llm.url, reward=TwiceCritic(), max_calls=1)
    assert len(llm.requests) == 1
    assert result.reward is None


def test_without_a_judge_the_reward_misses_evidence() -> None:
    node = RolloutNode("n0")
    [missing] = asyncio.run(
        check_reward(Critic(), lambda: node, only=["missing_evidence_is_an_error_of_its_own_type"])
    )
    assert missing.status == "passed"
