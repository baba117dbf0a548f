"""What one step costs through the Gymnasium adapter, both ways, in processor time.

In: a step of CartPole as the world of a rollout, without HTTP, over the bare `env.step`.
Out: a call of an unknown tool through `benchflow/Task-v0`.
Run it by a Python that has Gymnasium and BenchFlow: `python gymnasium_step.py [--steps 1000]`.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

import gymnasium
from benchflow_adapters_gymnasium.envs import ENV_ID
from benchflow_adapters_gymnasium.world import GymnasiumClient, GymnasiumSettings
from benchflow_engine.scaffold import write_task
from benchflow_env_outside import WorldLimits, WorldSession
from report import emit

BOUND_MS = 3.0
EPISODE = 8


async def inbound(steps: int) -> list[float]:
    """Return the CPU milliseconds of each step of a world."""
    spent: list[float] = []
    settings = GymnasiumSettings(id="CartPole-v1")
    while len(spent) < steps:
        client = GymnasiumClient(settings)
        session = WorldSession("gymnasium", client, {}, 1, "replay", WorldLimits())
        await session.open()
        for number in range(EPISODE):
            began = time.process_time()
            answer = await session.call("step", {"action": number % 2})
            spent.append((time.process_time() - began) * 1000)
            assert not answer.failed
        await session.aclose()
    return spent


def bare(steps: int) -> list[float]:
    """Return the CPU milliseconds of each step without BenchFlow."""
    env = gymnasium.make("CartPole-v1")
    spent: list[float] = []
    while len(spent) < steps:
        env.reset(seed=1)
        for number in range(EPISODE):
            began = time.process_time()
            env.step(number % 2)
            spent.append((time.process_time() - began) * 1000)
    env.close()
    return spent


def outbound(home: Path, steps: int) -> list[float]:
    """Return the CPU milliseconds of each step of a task."""
    write_task(home / "task")
    env = gymnasium.make(ENV_ID, tasks=str(home / "task"), jobs_dir=home / "jobs")
    env.reset(seed=1)
    spent: list[float] = []
    for _ in range(steps):
        began = time.process_time()
        env.step({"name": "nothing", "arguments": {}})
        spent.append((time.process_time() - began) * 1000)
    env.close()
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    ours, theirs = asyncio.run(inbound(options.steps)), bare(options.steps)
    over = round(median(ours) - median(theirs), 4)
    emit("gymnasium_step.in_cpu_ms", ours, over_bare_step=over, limit=BOUND_MS)
    with tempfile.TemporaryDirectory() as home:
        emit("gymnasium_step.out_cpu_ms", outbound(Path(home), options.steps), limit=BOUND_MS)


main()
