"""How soon a program starts in a twin, against the agent's own box, for tests with a short window.

The tests start a Python program that the agent has run before, in Harbor's protocol. A sample is
the time to its first line; `in_window` counts those within half a second. By turns: in the agent's
box (`shared`), in a twin, and in a twin whose bytecode is only removed, not made anew (`cold`).

    export BENCHFLOW_DOCKER_IMAGE=$(.ci/docker)
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from benchflow_adapters_harbor.grading import HARBOR
from benchflow_contracts import (
    Evidence,
    LiveWorld,
    RolloutNode,
    SandboxProvider,
    SandboxSpec,
    Task,
    TaskConfig,
    TracksFileChanges,
)
from benchflow_reward import ScriptVerifier
from benchflow_reward.script import bytecode
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from report import emit

Mode = Literal["shared", "twin", "cold"]

WINDOW_SEC = 0.5
SPEC = SandboxSpec(user="root", workdir="/srv")
PROGRAM = """import asyncio, http.client, json, time, unittest
print(time.time(), flush=True)
"""
TEST = """#!/bin/sh
began=$(date +%s.%N)
first=$(python3 /srv/program.py)
python3 -c "print($first - $began)" > /logs/verifier/reward.txt
"""


@asynccontextmanager
async def sandboxes(kind: str, image: str, store: Path) -> AsyncGenerator[SandboxProvider]:
    """Make a provider of a kind, whose sandboxes are made of the image."""
    provider: DockerProvider | LocalProvider = (
        DockerProvider(image=image, store=store) if kind == "docker" else LocalProvider(store=store)
    )
    try:
        yield provider
    finally:
        await provider.aclose()


async def first_line(provider: SandboxProvider, task: Task, spec: SandboxSpec, mode: Mode) -> float:
    """Return the seconds from the start of the program to its first line."""
    box = await provider.create(spec)
    if isinstance(box, TracksFileChanges):
        await box.set_baseline()
    await box.exec(["sh", "-c", "cat > program.py"], stdin=PROGRAM.encode())
    done = await box.exec("python3 program.py")
    assert done.ok, done
    node = RolloutNode(id="leaf")
    world = LiveWorld(sandbox=box, provider=provider, grading_spec=spec)
    evidence = Evidence(task=task, world=world)
    result = await ScriptVerifier(
        isolation="shared" if mode == "shared" else "twin", protocol=HARBOR
    ).score(node, evidence)
    await box.teardown()
    assert result.reward is not None, result
    return result.reward


def without_compiling() -> AbstractContextManager[object]:
    """Have no interpreter that compiles."""
    return patch.object(bytecode, "_PLACES", ())


def write_task(path: Path) -> Task:
    """Return the task."""
    (path / "tests").mkdir(parents=True)
    (path / "tests/test.sh").write_text(TEST)
    config = TaskConfig.model_validate({"name": "window"})
    return Task(id="window", path=path, instruction="", config=config, digest="")


async def measured(kind: str, image: str, runs: int) -> None:
    """Print one line per mode."""
    with tempfile.TemporaryDirectory() as directory:
        task = write_task(Path(directory, "task"))
        spec = SPEC if kind == "docker" else SPEC.model_copy(update={"image": image})
        found: dict[Mode, list[float]] = {"shared": [], "twin": [], "cold": []}
        async with sandboxes(kind, image, Path(directory, "store")) as provider:
            for _ in range(runs):
                for mode, samples in found.items():
                    with without_compiling() if mode == "cold" else nullcontext():
                        samples.append(await first_line(provider, task, spec, mode))
    for mode, samples in found.items():
        in_window = sum(each <= WINDOW_SEC for each in samples)
        milliseconds = [each * 1000 for each in samples]
        emit(f"first_line_{kind}_{mode}", milliseconds, in_window=in_window)


def main() -> None:
    """Measure each sandbox that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sandboxes", nargs="*", default=["docker", "local"])
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    for kind in chosen.sandboxes:
        asyncio.run(measured(kind, os.environ["BENCHFLOW_DOCKER_IMAGE"], chosen.runs))


if __name__ == "__main__":
    main()
