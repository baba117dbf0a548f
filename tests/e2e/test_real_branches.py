"""Real agents on a real task, forked by `bench` at their question as a user would."""

# pyright: basic

import json
from pathlib import Path
from typing import Any

import pytest
from room_booking import EVENTS, book
from scripted_llm import ScriptedLlm

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"


@pytest.mark.parametrize(
    ("agent", "path", "more"),
    [
        ("claude-agent-acp", "", ()),
        ("codex-acp", "/v1", ("--agent-env.BENCHFLOW_ASK_MCP", "1")),
    ],
    ids=["claude-agent-acp", "codex-acp"],
)
def test_a_waiting_question_is_forked_live_and_one_branch_is_right(
    bench: Any, tmp_path: Path, agent: str, path: str, more: tuple[str, ...]
) -> None:
    with ScriptedLlm(book) as llm:
        endpoint = ("--base-url", f"{llm.url}{path}", "--model", "mock-model")
        branch = ("--branch", "ask-user", "--branch-require", "live")
        record = bench("run", TASK, "--agent", agent, *endpoint, *branch, *more, "--json")
    value = record["value"]
    assert (value["mean"], value["n"], value["weighting"]) == (1.0, 1, "answers")
    [line] = (tmp_path / record["directory"] / "trainer/verifiers.jsonl").read_text().splitlines()
    assert json.loads(line)["reward"] == 1.0
    tree = json.loads((tmp_path / record["directory"] / "tree.json").read_text())
    leaves = [node["results"]["reward"]["reward"] for node in tree["nodes"] if node["results"]]
    assert sorted(reward == 1.0 for reward in leaves) == [False, False, True]
    answers = {request.tool_results[1] for request in llm.requests if len(request.tool_results) > 1}
    assert len([event for event in EVENTS if event in str(answers)]) == 3
