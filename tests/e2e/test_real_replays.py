"""Real agents ask the model for the same again, as far as a replay can tell."""

from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"
AGENTS = {
    # One real agent runs in CI, too: it comes from PyPI, as everything there does.
    "mistral-vibe": "/v1",
    "codex-acp": "/v1",
    "zed-codex-acp": "/v1",
    "claude-agent-acp": "",
    "opencode": "/v1",
    "qwen": "/v1",
}


def work(request: ModelRequest) -> ModelReply:
    """Run two commands, then say so."""
    if not request.tools:
        return ModelReply(text="A title")
    done = len(request.tool_results)
    command = ("echo hello > hello.txt; pwd", "cat hello.txt")
    tools = [
        (tool, key)
        for tool in request.tools
        for key in ("command", "cmd")
        if key in request.tools[tool].get("properties", {})
    ]
    if done >= len(command) or not tools:
        return ModelReply(text="Done.")
    (tool, key), *_ = tools
    return ModelReply(text="I act.", tools=(ToolUse(tool, {key: command[done]}),))


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "mistral-vibe" else [])
        for name in AGENTS
    ],
)
def test_the_recorded_calls_of_a_real_agent_match_in_a_replay(bench: Any, agent: str) -> None:
    with ScriptedLlm(work) as llm:
        url = f"{llm.url}{AGENTS[agent]}"
        endpoint = ("--base-url", url, "--model", "mock-model")
        made = bench("run", TASK, "--agent", agent, *endpoint, "--json")
        assert (made["status"], made["reward"]) == ("completed", 0.0)
        command = ("rollout", "replay", made["rollout_id"], "--json")
        report = bench(*command, code=int(agent == "zed-codex-acp"))
    assert report["repeated_reward"] == 0.0
    assert report["replayed_calls"] >= 3
    # Zed's adapter shows its user what it draws for the head of each result.
    assert report["same"] is (agent != "zed-codex-acp")
