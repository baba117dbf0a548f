"""Nodes and tasks to score, over the fakes of the contracts."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchflow_contracts import (
    Evidence,
    ExecResult,
    LiveWorld,
    RolloutNode,
    SandboxSpec,
    Task,
    TaskConfig,
)
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider

sys.path.insert(0, str(Path(__file__).parent))


class Case(NamedTuple):
    """What a reward is given."""

    node: RolloutNode
    evidence: Evidence


@pytest.fixture
def provider() -> FakeSandboxProvider:
    """Sandboxes in memory, whose shells find nothing and whose links lead nowhere."""
    provider = FakeSandboxProvider()
    nothing = ExecResult(exit_code=0, stdout="end\0", stderr="", duration_sec=0)
    provider.on("/bin/sh -c for n in PATH", lambda call: nothing)
    provider.on("/bin/sh -c for l in", lambda call: nothing)
    return provider


@pytest.fixture
def box(provider) -> FakeSandbox:
    """The agent's sandbox."""
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
def make_case(provider, box, tmp_path) -> Callable[..., Case]:
    """A node, and evidence with a live world."""

    def make(task: Task) -> Case:
        spec = SandboxSpec(env={"PYTHONPATH": "/evil", "LANG": "C"})
        world = LiveWorld(sandbox=box, provider=provider, grading_spec=spec)
        evidence = Evidence(task=task, world=world, log_dir=tmp_path / "verifier")
        return Case(RolloutNode(id="n0"), evidence)

    return make
