"""Agents without a protocol: a program takes one prompt, works through the gateway, and ends."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_store import StoredRollout
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

DECLARATION = """
id = "small-command"
name = "Small command"
version = "1.0.0"
description = "A shell tool in thirty lines."
[distribution.binary]
[launch]
cmd = "python3"
args = ["/workspace/agent.py", "{model}", "{prompt}"]
env = { BASE_URL = "{base_url}" }
[command]
continue_args = ["--continue"]
[model]
wire = "openai-chat"
"""
PROGRAM = """
import json, os, subprocess, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[2]}]
schema = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"type": "function", "function": {"name": "shell", "parameters": schema}}
while True:
    body = {"model": sys.argv[1], "messages": messages, "tools": [tool]}
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls") or ():
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        text = done.stdout + done.stderr
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    if not message.get("tool_calls"):
        print("bye", "--continue" in sys.argv)
        sys.exit(3 if "fail" in message["content"] else 0)
"""
TEST = """#!/bin/sh
if [ "$(cat /workspace/answer.txt 2>/dev/null)" = done ]; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task whose image holds the agent's program."""
    root = tmp_path / "task"
    files = root / "environment" / "files" / "workspace"
    files.mkdir(parents=True)
    (files / "agent.py").write_text(PROGRAM)
    (root / "tests").mkdir()
    (root / "tests" / "test.sh").write_text(TEST)
    (root / "task.toml").write_text(
        'name = "write-answer"\nartifacts = ["/workspace/answer.txt"]\n'
    )
    (root / "instruction.md").write_text("Write the word done into answer.txt.\n")
    (tmp_path / "small.toml").write_text(DECLARATION)
    return root


def writes(final: str) -> Callable[[ModelRequest], ModelReply]:
    def answer(request: ModelRequest) -> ModelReply:
        if request.tool_results:
            return ModelReply(text=final)
        command = "printf done > answer.txt && echo written"
        return ModelReply(
            text="I write.", reasoning="Easy.", tools=(ToolUse("shell", {"command": command}),)
        )

    return answer


def played(bench_in: Callable[..., Any], task: Path, final: str, *more: str, code: int = 0) -> Any:
    with ScriptedLlm(writes(final)) as llm:
        return bench_in(
            task.parent,
            *("run", task, "--agent", "small.toml", "--base-url", f"{llm.url}/v1"),
            *("--model", "scripted", "--json", *more),
            code=code,
        )


def test_the_model_calls_of_a_command_are_its_steps(
    bench_in: Callable[..., Any], task: Path
) -> None:
    result = played(bench_in, task, "Done.")
    assert result["reward"] == 1
    directory = task.parent / result["directory"]
    tree = StoredRollout(directory).read_finished().tree
    first, last = [node.step for node in tree.nodes if node.step is not None]
    assert (first.reasoning, first.message) == ("Easy.", "I write.")
    assert [observation.content for observation in first.observations] == ["written\n"]
    assert (last.message, last.stop_reason) == ("Done.", "end_turn")
    assert [len(step.model_calls) for step in (first, last)] == [1, 1]
    assert (directory / "agent" / "stdout.txt").read_text() == "bye False\n"


def test_a_command_that_fails_is_graded_on_what_it_left(
    bench_in: Callable[..., Any], task: Path
) -> None:
    result = played(bench_in, task, "I fail.")
    assert result["reward"] == 1
    assert "ended with exit code 3" in json.dumps(result)


def test_a_later_prompt_continues_the_session(bench_in: Callable[..., Any], task: Path) -> None:
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(f'{text}[agent]\nmax_turns = 2\n[user]\nnudges = ["Again."]\n')
    result = played(bench_in, task, "Done.")
    directory = task.parent / result["directory"]
    assert (directory / "agent" / "stdout.txt").read_text() == "bye False\nbye True\n"


def typed(request: ModelRequest, command: str) -> ModelReply:
    """Answer Terminus, which reads keystrokes from JSON, and asks whether the task is complete."""
    again = any(message["role"] == "assistant" for message in request.raw["messages"])
    keys = [] if again else [{"keystrokes": f"{command}\n", "duration": 0.5}]
    said = {"analysis": "-", "plan": "-", "commands": keys, "task_complete": again}
    return ModelReply(text=json.dumps(said))


def real_answers(request: ModelRequest) -> ModelReply:
    """Answer the real agents, each by its own tools or its text format."""
    command = "printf 'done\\n' > answer.txt"
    done = bool(request.tool_results)
    if "COMPLETE_TASK_AND_SUBMIT" in json.dumps(request.raw):
        end = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        return ModelReply(tools=(ToolUse("bash", {"command": end if done else command}),))
    if "keystrokes" in json.dumps(request.raw):
        return typed(request, command)
    if done:
        return ModelReply(text="Done.")
    for name, schema in request.tools.items():
        fields = schema.get("properties", {})
        if name == "run_commands":
            return ModelReply(tools=(ToolUse(name, {"commands": [command]}),))
        if name == "shell":
            return ModelReply(tools=(ToolUse(name, {"command": command}),))
        if name == "terminal":
            more = {"security_risk": "LOW"} if "security_risk" in fields else {}
            return ModelReply(tools=(ToolUse(name, {"command": command, **more}),))
        if name == "Write":
            return ModelReply(tools=(ToolUse(name, {"path": "answer.txt", "content": "done\n"}),))
    return ModelReply(text="answer.txt\n```\ndone\n```\n")


@pytest.mark.agents
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["aider", "cline", "goose", "kimi", "mini-swe-agent", "openhands", "terminus-2"]
)
def test_a_real_agent_works_through_the_gateway(
    bench_in: Callable[..., Any], task: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = os.environ.get("BENCHFLOW_NODE_22")
    if name == "kimi" and node is None:
        pytest.fail("BENCHFLOW_NODE_22 must name the directory of a Node.js 22.19 or later")
    monkeypatch.setenv("PATH", f"{node or '/nowhere'}:{os.environ['PATH']}")
    with ScriptedLlm(real_answers) as llm:
        result = bench_in(
            task.parent,
            *("run", task, "--agent", name, "--base-url", f"{llm.url}/v1"),
            *("--model", "scripted", "--json"),
        )
    assert result["reward"] == 1
    tree = StoredRollout(task.parent / result["directory"]).read_finished().tree
    assert any(node.step is not None and node.step.model_calls for node in tree.nodes)


@pytest.mark.agents
@pytest.mark.timeout(900)
def test_auggie_starts_and_asks_for_its_vendors_login(
    bench_in: Callable[..., Any], task: Path
) -> None:
    result = bench_in(task.parent, "run", task, "--agent", "auggie", "--json", code=1)
    assert "Authentication required" in json.dumps(result)
