"""Nodes and tasks to score, over the fakes of the contracts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchflow_contracts import (
    Ask,
    AskOption,
    EnvState,
    Evidence,
    ExecResult,
    LiveWorld,
    Question,
    RolloutNode,
    SandboxSpec,
    Step,
    Task,
    TaskConfig,
)
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider


class Case(NamedTuple):
    """What a reward is given."""

    node: RolloutNode
    evidence: Evidence


@pytest.fixture
def provider() -> FakeSandboxProvider:
    """Sandboxes in memory, whose shells say that nothing is there and that links lead nowhere."""
    provider = FakeSandboxProvider()
    nothing = ExecResult(exit_code=0, stdout="end\0", stderr="", duration_sec=0)
    provider.on("/bin/sh -c for n in PATH", lambda call: nothing)
    provider.on("/bin/sh -c for l in", lambda call: nothing)
    return provider


@pytest.fixture
def box(provider) -> FakeSandbox:
    """The box in which the agent was."""
    return asyncio.run(provider.create(SandboxSpec()))


@pytest.fixture
def make_task(tmp_path) -> Callable[..., Task]:
    def make(**config: Any) -> Task:
        path = tmp_path / "task"
        (path / "tests").mkdir(parents=True, exist_ok=True)
        (path / "tests" / "test.sh").write_text("#!/bin/bash\n")
        checked = TaskConfig.model_validate({"name": "demo", **config})
        return Task(id="demo", path=path, instruction="Do it.", config=checked, digest="0")

    return make


@pytest.fixture
def make_case(provider, box, make_task, tmp_path) -> Callable[..., "Case"]:
    """A leaf below one node per step, and evidence with a live world."""

    def make(*steps: Step, task: Task | None = None, env_state: EnvState | None = None) -> Case:
        node = RolloutNode(id="n0")
        for index, step in enumerate(steps, 1):
            child = RolloutNode(id=f"n{index}", parent=node, step=step)
            node.children.append(child)
            node = child
        node.env_state = env_state
        world = LiveWorld(
            sandbox=box,
            provider=provider,
            grading_spec=SandboxSpec(env={"PYTHONPATH": "/evil", "LANG": "C"}),
        )
        log_dir = tmp_path / "verifier"
        return Case(node, Evidence(task=task or make_task(), world=world, log_dir=log_dir))

    return make


@pytest.fixture
def step() -> Callable[..., Step]:
    counter = iter(range(1000))

    def make(**fields: Any) -> Step:
        return Step(id=f"s{next(counter)}", started_at=0, finished_at=1, **fields)

    return make


@pytest.fixture
def question() -> Callable[..., Ask]:
    def make(text: str = "Which one?", kind: str = "question") -> Ask:
        options = (AskOption(id="a", label="First"), AskOption(id="b", label="Second"))
        asked = Question(id="q", text=text, options=options)
        return Ask(id="ask", channel="elicitation", kind=kind, questions=(asked,))

    return make


@pytest.fixture
def tests_dir(tmp_path) -> Path:
    return tmp_path / "task" / "tests"
