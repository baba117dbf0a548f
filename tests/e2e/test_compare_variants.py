"""An AB test: two scripted models try ClawsBench, and the interval has the known difference."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(300)

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
REPEATS = 2
CHANCES = {"weak": 0.1, "strong": 0.9}
"""The chance of each model to solve a task. The true difference is 0.8."""
ASK = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11", "evt-12"]}
BOOK = "claw-gcal update evt-11 --add-attendee room-maple@harborlight.example"


def attempts(model: str, task: str) -> Iterator[bool]:
    """Yield whether each attempt of a model at a task is to succeed."""
    chance = random.Random(f"{model} at {task}")
    while True:
        yield chance.random() < CHANCES[model]


def script(model: str) -> Callable[[ModelRequest], ModelReply]:
    """Return a model that solves a task, or gives up, as its attempts say."""
    names = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))
    first_lines = {
        name: (TASKS / name / "instruction.md").read_text().splitlines()[0] for name in names
    }
    coming = {name: attempts(model, name) for name in names}
    lock = threading.Lock()

    def reply(request: ModelRequest) -> ModelReply:
        (task,) = (name for name in names if first_lines[name] in request.user_text)
        solution = TASKS / task / "solution/solve.sh"
        if request.tool_results:
            is_answer = not solution.exists() and len(request.tool_results) == 1
            return shell(BOOK) if is_answer else ModelReply(text="Done.")
        with lock:
            succeeds = next(coming[task])
        if not succeeds:
            return ModelReply(text="I cannot do this.")
        if solution.exists():
            return shell(solution.read_text())
        return ModelReply(tools=(ToolUse("ask_user", ASK),))

    return reply


def shell(command: str) -> ModelReply:
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))


def expected_mean(model: str, task: str) -> float:
    coming = attempts(model, task)
    return fmean(next(coming) for _ in range(REPEATS))


def test_a_known_difference_lies_inside_the_interval(bench: Any) -> None:
    tasks = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))
    for model in CHANCES:
        with ScriptedLlm(script(model)) as llm:
            endpoint = ("--agent", "policy", "--base-url", f"{llm.url}/v1", "--model", "scripted")
            job = ("--tasks-dir", TASKS, "--repeats", REPEATS, "--job-name", model, "-n", 4)
            report = bench("eval", "create", *job, *endpoint, "--json")
        assert report["scored"] == report["planned"] == len(tasks) * REPEATS
    analysis = bench("analyze", "weak", "strong", "--json")
    means = {each["name"]: each["mean"]["mean"] for each in analysis["variants"]}
    for model in CHANCES:
        assert means[model] == pytest.approx(fmean(expected_mean(model, task) for task in tasks))
    (comparison,) = analysis["comparisons"]
    paired = comparison["paired"]
    assert (comparison["baseline"], comparison["variant"]) == ("weak", "strong")
    assert (paired["tasks"], paired["unpaired"], paired["refused"]) == (len(tasks), 0, None)
    assert paired["delta"] == pytest.approx(means["strong"] - means["weak"])
    assert paired["interval"]["method"] == "student_t"
    known = CHANCES["strong"] - CHANCES["weak"]
    assert paired["interval"]["low"] <= known <= paired["interval"]["high"]
    assert comparison["answer"] == "better"
    assert comparison["adjusted_p"] < 0.05
