"""What grading adds to a rollout, in each design, on each sandbox, in milliseconds.

And what it costs the tests of a twin that the files which they open are observed.
Docker needs an engine and `BENCHFLOW_DOCKER_IMAGE`, the base image that `.ci/docker` makes.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Literal, NoReturn
from unittest.mock import patch

from benchflow_adapters_harbor.grading import HARBOR
from benchflow_contracts import (
    Evidence,
    LiveWorld,
    RolloutNode,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SandboxUnsupportedError,
    Task,
    TaskConfig,
    TracksFileChanges,
)
from benchflow_reward import NATIVE, GradingProtocol, ScriptVerifier
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from report import emit

Isolation = Literal["hermetic", "twin", "shared"]
Protocol = Literal["benchflow", "harbor"]

RUNS: dict[Isolation, int] = {"shared": 20, "hermetic": 20, "twin": 10}
OBSERVED_RUNS = 15
LIMITS = {("local", "hermetic"): 300.0, ("docker", "hermetic"): 1500.0}
SPEC = SandboxSpec()
TEST = """#!/bin/sh
if [ "$(cat /workspace/answer.txt)" = 42 ]; then echo 1; else echo 0; fi \\
  > /logs/verifier/reward.txt
"""
OPENING = """#!/bin/sh
for n in 1 2 3 4 5 6 7 8 9 10; do python3 -m unittest --help > /dev/null; done
echo 1 > /logs/verifier/reward.txt
"""
"""About 1,000 opens of files by ten processes that start an interpreter and a test runner."""


def write_task(path: Path, protocol: Protocol, test: str = TEST) -> Task:
    """Return a task, by default one whose test takes no time of its own to speak of."""
    tests = path / protocol / "tests"
    tests.mkdir(parents=True)
    (tests / "test.sh").write_text(test)
    config = TaskConfig.model_validate(
        {
            "name": "grading",
            "artifacts": ["/workspace/answer.txt"],
            "verifier": {"protocol": protocol},
        }
    )
    return Task(id="grading", path=tests.parent, instruction="", config=config, digest="")


async def agents_box(provider: SandboxProvider) -> Sandbox:
    """Return a box in which an agent has answered, marked before it as the kernel does."""
    box = await provider.create(SPEC)
    if isinstance(box, TracksFileChanges):
        await box.set_baseline()
    done = await box.exec("echo 42 > answer.txt")
    assert done.ok
    return box


def protocol_of(task: Task) -> GradingProtocol:
    """Return the protocol that a task names."""
    return HARBOR if task.config.verifier.protocol == "harbor" else NATIVE


async def graded(provider: SandboxProvider, task: Task, isolation: Isolation) -> float:
    """Grade one box and return how long that took, the test's own time taken off."""
    box = await agents_box(provider)
    node = RolloutNode(id="leaf")
    world = LiveWorld(sandbox=box, provider=provider, grading_spec=SPEC)
    evidence = Evidence(task=task, world=world)
    started = time.perf_counter()
    result = await ScriptVerifier(isolation=isolation, protocol=protocol_of(task)).score(
        node, evidence
    )
    took = time.perf_counter() - started
    assert result.reward == 1, result
    await box.teardown()
    return (took - float(result.meta["duration_sec"])) * 1000


async def measured(provider: SandboxProvider, task: Task) -> int:
    """Print a line per isolation; return how many limits were missed."""
    missed = 0
    for isolation, runs in RUNS.items():
        await graded(provider, task, isolation)
        samples = [await graded(provider, task, isolation) for _ in range(runs)]
        limit = LIMITS.get((provider.name, isolation))
        protocol = task.config.verifier.protocol
        name = f"grading_{provider.name}_{protocol}_{isolation}"
        middle = emit(name, samples, limit=limit)
        missed += limit is not None and middle > limit
    return missed


async def observed(provider: SandboxProvider, task: Task) -> tuple[float, float]:
    """Grade a twin; return the milliseconds of its tests, and those of this process's CPU."""
    box = await agents_box(provider)
    node = RolloutNode(id="leaf")
    world = LiveWorld(sandbox=box, provider=provider, grading_spec=SPEC)
    evidence = Evidence(task=task, world=world)
    started = time.process_time()
    result = await ScriptVerifier(isolation="twin", protocol=protocol_of(task)).score(
        node, evidence
    )
    cpu = time.process_time() - started
    assert result.reward == 1, result
    await box.teardown()
    return float(result.meta["duration_sec"]) * 1000, cpu * 1000


def refuse(*_: object) -> NoReturn:
    """Stand in for the observation, as where it cannot be had."""
    raise SandboxUnsupportedError("the benchmark observes nothing")


async def observation(provider: SandboxProvider, task: Task) -> None:
    """Print what observation costs, by turns with and without."""
    box = await provider.create(SPEC)
    kind = type(box)
    await box.teardown()
    with_it, without = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(OBSERVED_RUNS):
        with_it.append(await observed(provider, task))
        with patch.object(kind, "observe_files", refuse):
            without.append(await observed(provider, task))
    tests, cpu = zip(*with_it, strict=True)
    own_tests, own_cpu = zip(*without, strict=True)
    emit(
        f"grading_{provider.name}_observed",
        tests,
        peer="unobserved",
        unobserved=round(median(own_tests), 4),
        ratio=round(median(tests) / median(own_tests), 4),
        runner_cpu=round(median(cpu), 4),
        unobserved_runner_cpu=round(median(own_cpu), 4),
    )


async def main() -> int:
    """Measure both protocols on Local and on Docker; fail when a limit is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        tasks = [write_task(Path(name), protocol) for protocol in ("benchflow", "harbor")]
        opening = write_task(Path(name, "opening"), "harbor", OPENING)
        image = os.environ["BENCHFLOW_DOCKER_IMAGE"]
        for provider in (LocalProvider(), DockerProvider(image=image, store=Path(name, "store"))):
            try:
                for task in tasks:
                    missed += await measured(provider, task)
                await observation(provider, opening)
            finally:
                await provider.aclose()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
