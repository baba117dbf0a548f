"""Real agents on a real task, forked by `bench` at their question as a user would."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"
EVENTS = ["evt-10", "evt-11", "evt-12"]
QUESTION = "Which review with Dana?"
LOOK = "claw-gcal list --start 2026-03-16T00:00:00Z --end 2026-03-21T00:00:00Z --text review"
ROOM = "room-maple@harborlight.example"


def properties(request: ModelRequest, tool: str) -> dict[str, Any]:
    found: dict[str, Any] = request.tools[tool].get("properties", {})
    return found


def shell(request: ModelRequest, command: str) -> ModelReply:
    tool, key = next(
        (tool, key)
        for tool in request.tools
        for key in ("command", "cmd")
        if key in properties(request, tool)
    )
    return ModelReply(tools=(ToolUse(tool, {key: command}),))


def ask(request: ModelRequest) -> ModelReply:
    """Ask with the portable tool where there is one, otherwise with the agent's own."""
    portable = next((t for t in request.tools if "options" in properties(request, t)), None)
    if portable is not None:
        return ModelReply(tools=(ToolUse(portable, {"question": QUESTION, "options": EVENTS}),))
    tool = next(tool for tool in request.tools if "questions" in properties(request, tool))
    options = [{"label": event, "description": "A review"} for event in EVENTS]
    question = {"question": QUESTION, "header": "Event", "options": options, "multiSelect": False}
    return ModelReply(tools=(ToolUse(tool, {"questions": [question]}),))


def book(request: ModelRequest) -> ModelReply:
    """Look, ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not request.tools:
        return ModelReply(text="A title")
    if not seen:
        return shell(request, LOOK)
    if len(seen) == 1:
        return ask(request)
    if len(seen) == 2:
        chosen = next(event for event in EVENTS if event in seen[1])
        return shell(request, f"claw-gcal update {chosen} --add-attendee {ROOM}")
    return ModelReply(text="Booked.")


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
