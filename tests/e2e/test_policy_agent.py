"""The policy agent on real tasks: in network-less boxes, against a scripted model."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(300)

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
ARCHIVE = (TASKS / "archive-newsletters/solution/solve.sh").read_text()
EVENTS = ["evt-10", "evt-11", "evt-12"]


def shell(command: str) -> ModelReply:
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))


def archive(request: ModelRequest) -> ModelReply:
    return ModelReply(text="Done.") if request.tool_results else shell(ARCHIVE)


def book(request: ModelRequest, tool: str = "ask_user") -> ModelReply:
    """Look, ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        return shell("claw-gcal list --calendar cal-1 --text review")
    if len(seen) == 1:
        ask = {"question": "Which review with Dana?", "options": EVENTS}
        return ModelReply(text="Only you can tell.", tools=(ToolUse(tool, ask),))
    if len(seen) == 2:
        chosen = next(event for event in EVENTS if event in seen[1])
        room = "room-maple@harborlight.example"
        return shell(f"claw-gcal update {chosen} --add-attendee {room}")
    return ModelReply(text="Booked.")


def run(bench: Any, llm: ScriptedLlm, task: str, *more: object) -> Any:
    endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted")
    return bench("run", TASKS / task, "--agent", "policy", *endpoint, *more, "--json")


def test_a_policy_earns_the_reward_of_a_task_through_its_shell(bench: Any) -> None:
    with ScriptedLlm(archive) as llm:
        record = run(bench, llm, "archive-newsletters", "--upstream", "auto", "--require-tokens")
    assert record["reward"] == 1.0
    assert record["endpoint_probe"] == {"level": "tokens+logprobs", "error": None}
    # The first one is the probe of an endpoint whose kind was not stated.
    assert len(llm.requests) == 3


@pytest.mark.slow
def test_a_required_fork_that_never_came_is_a_failure(bench: Any, tmp_path: Path) -> None:
    forks = ("--branch", "ask-user", "--branch-require", "live")
    with ScriptedLlm(archive) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        task = TASKS / "archive-newsletters"
        record = bench("run", task, *endpoint, *forks, "--json", code=1)
        assert (record["status"], record["branches"], record["reward"]) == ("completed", 0, 1.0)
        job = ("eval", "create", "--tasks-dir", task, "--jobs-dir", tmp_path / "jobs")
        report = bench(*job, *endpoint, *forks, "--upstream", "auto", "--json", code=1)
    assert report["scored"] == 1
    assert [r["endpoint_probe"]["level"] for r in report["records"]] == ["tokens+logprobs"]


def test_a_run_whose_endpoint_is_away_ends_before_it_starts(bench: Any, tmp_path: Path) -> None:
    with ScriptedLlm(archive) as llm:
        gone = llm.url
    endpoint = ("--base-url", f"{gone}/v1", "--model", "scripted", "--agent", "policy")
    assert bench("run", TASKS / "archive-newsletters", *endpoint, code=4) == ""
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("tool", "env"),
    [
        ("ask_user", ()),
        ("mcp__benchflow__ask_user", ("--agent-env.BENCHFLOW_ASK_MCP", "1")),
    ],
    ids=["its-own-tool", "the-portable-tool"],
)
def test_a_policys_question_is_forked_and_one_branch_is_right(
    bench: Any, tmp_path: Path, tool: str, env: tuple[str, ...]
) -> None:
    with ScriptedLlm(partial(book, tool=tool)) as llm:
        record = run(bench, llm, "book-the-review-room", "--branch", "ask-user", *env)
    value = record["value"]
    assert (value["mean"], value["n"], value["weighting"]) == (1.0, 1, "answers")
    [line] = (tmp_path / record["directory"] / "trainer/verifiers.jsonl").read_text().splitlines()
    assert json.loads(line)["reward"] == 1.0
    tree = json.loads((tmp_path / record["directory"] / "tree.json").read_text())
    leaves = [node["results"]["reward"]["reward"] for node in tree["nodes"] if node["results"]]
    assert sorted(reward == 1.0 for reward in leaves) == [False, False, True]
    # Every branch said the same up to the question, and each its own from there.
    answers = {r.tool_results[1] for r in llm.requests if len(r.tool_results) > 1}
    assert len(answers) == 3
