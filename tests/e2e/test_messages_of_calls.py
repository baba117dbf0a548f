"""A reward gets the messages of the agent's model calls, and a task limits them: real processes."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Evidence, RolloutNode, UsageError, VerifyResult
from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import RunResult, run_in
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(240)


class Reader:
    """Scores 1 if the model saw its system prompt, and keeps what it read."""

    name = "reward"

    def __init__(self) -> None:
        self.read: list[Any] = []

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        messages = evidence.require_messages(self.name)
        self.read.append(messages)
        return VerifyResult(reward=float(messages[0]["role"] == "system"))


def act(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="I wrote it.")
    return ModelReply(tools=(ToolUse("shell", {"command": "echo hello, world > greeting.txt"}),))


def play(
    home: Path, reward: Reader, table: str = "", agent: str = "policy", **more: Any
) -> RunResult:
    write_task(home / "task")
    file = home / "task/task.toml"
    file.write_text(file.read_text() + table)
    with ScriptedLlm(act) as llm:
        model = {"base_url": f"{llm.url}/v1", "model": "m"} if agent == "policy" else {}
        config = run_config(agent=agent, capture_state="none", **model, **more)

        async def rollout() -> RunResult:
            async with open_provider(config) as provider:
                return await run_in(
                    provider,
                    runnable_task(home / "task"),
                    config,
                    directory=home / "rollout",
                    prepare=lambda planes: replace(planes, rewards=[reward]),
                )

        return asyncio.run(rollout())


def test_a_reward_reads_what_the_model_of_each_branch_saw(tmp_path: Path) -> None:
    reward = Reader()
    result = play(tmp_path, reward, branch="group", branch_at_call=2, branch_n=2)
    assert [leaf.reward for leaf in result.tree.leaves] == [1.0, 1.0]
    assert len(reward.read) == 2
    for messages in reward.read:
        assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert "hello, world" in messages[1]["content"]
        assert messages[-1]["content"] == "I wrote it."


def test_a_reward_that_needs_messages_is_unscored_without_a_call(tmp_path: Path) -> None:
    reward = Reader()
    [leaf] = play(tmp_path, reward, agent="nop").tree.leaves
    assert (leaf.reward, reward.read) == (None, [])
    assert "no call was recorded" in (leaf.results["reward"].error or "")


def test_a_limit_on_messages_ends_the_work_which_is_graded(tmp_path: Path) -> None:
    reward = Reader()
    [leaf] = play(tmp_path, reward, "[agent]\nmax_messages = 4\n").tree.leaves
    assert leaf.reward == 1.0
    assert leaf.error is not None
    assert "4 messages, and the limit is 4" in leaf.error.message
    assert [m["role"] for m in reward.read[0]] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ("max_cost_usd = 1.0", "limits the cost of its model calls to 1 USD"),
        (
            'other_limits = ["working_limit = 60"]\nself_limited = ["inspect-solver"]',
            "the task has working_limit = 60, and no agent of the rollout applies it",
        ),
    ],
)
def test_a_limit_that_cannot_be_applied_is_refused_by_its_name(
    tmp_path: Path, limit: str, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        play(tmp_path, Reader(), f"[agent]\n{limit}\n")
    assert not (tmp_path / "rollout/events.jsonl").exists()
