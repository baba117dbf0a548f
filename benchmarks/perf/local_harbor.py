"""A no-op Harbor task on the local sandbox: everything from its directory to its record.

Needs an image with a shell that the local sandbox finds by the name in $BENCHFLOW_DOCKER_IMAGE.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from benchflow_contracts import SandboxProvider
from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from report import emit

RUNS, AT_ONCE, EACH = 40, 4, 8
LIMIT = 0.4
FILES = {
    "task.toml": '[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Do nothing.\n",
    "environment/Dockerfile": "FROM {image}\nWORKDIR /app\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}


def write_task(root: Path) -> None:
    """Write a task that anybody solves."""
    image = os.environ["BENCHFLOW_DOCKER_IMAGE"]
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(image=image) if "{image}" in text else text)


async def rollout(provider: SandboxProvider, task: Path, jobs: Path) -> float:
    """Run the task once, its directory read anew; return the seconds that took."""
    started = time.perf_counter()
    options = run_config(agent="nop")
    directory = jobs / f"noop-{time.perf_counter_ns()}"
    result = await run_in(provider, runnable_task(task), options, directory=directory)
    assert result.reward == 1, result.record
    return time.perf_counter() - started


async def main() -> int:
    """Print the lines; fail when the limit is missed."""
    with tempfile.TemporaryDirectory() as name:
        task, jobs = Path(name, "noop"), Path(name, "jobs")
        write_task(task)
        async with open_provider(run_config(agent="nop")) as provider:
            await rollout(provider, task, jobs)
            cpu = time.process_time()
            samples = [await rollout(provider, task, jobs) for _ in range(RUNS)]
            cpu = (time.process_time() - cpu) / RUNS
            wall = emit("local_harbor_noop", samples, unit="s", limit=LIMIT, cpu=round(cpu, 4))
            together = [await _together(provider, task, jobs) for _ in range(5)]
            emit("local_harbor_noop_8_at_4", together, unit="s", rollouts=EACH, at_once=AT_ONCE)
    return 1 if wall > LIMIT else 0


async def _together(provider: SandboxProvider, task: Path, jobs: Path) -> float:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots:
            await rollout(provider, task, jobs)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(EACH):
            group.create_task(one())
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
