"""What a rollout on Ray takes over a local one: CPU time of the driver, the actor and Ray itself.

The rollouts end at once. A Ray node on the loopback interface and the local backend take turns,
with the same dispatches. The CPU time of Ray is that of all its processes, also of the head.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchflow_contracts import Dispatch, WorkerBackend
from benchflow_jobs.local_backend import LocalBackend
from benchflow_jobs_ray import LocalCluster, RayBackend
from benchflow_testing.fakes import FakeExecutor
from report import emit

ROLLOUTS, AT_ONCE, RUNS = 2_000, 64, 5
EXECUTOR = "benchflow_testing.fakes:FakeExecutor"


def cluster_cpu(session: int) -> float:
    """Return the CPU seconds of all processes of a session."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def run(backend: WorkerBackend) -> None:
    """Run the rollouts, some at once."""

    async def read() -> None:
        ended = backend.completions()
        for _ in range(ROLLOUTS):
            await anext(ended)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        for index in range(ROLLOUTS):
            name = f"r{index}"
            await backend.submit(
                Dispatch(job="j", index=index, slot=name, attempt=1, epoch=1, rollout=name)
            )


async def measured(backend: WorkerBackend, cpu: Callable[[], float]) -> float:
    """Return the CPU milliseconds of a rollout on a new backend, without its start."""
    await backend.start()
    begun = cpu()
    await run(backend)
    used = cpu() - begun
    await backend.close()
    return 1000 * used / ROLLOUTS


async def main() -> None:
    """Measure both in turns."""
    limits = {"slots": AT_ONCE}
    local: list[float] = []
    driver: list[float] = []
    everything: list[float] = []
    async with LocalCluster([{"benchflow": AT_ONCE}]) as cluster:
        session = cluster.session or 0
        for _ in range(RUNS):
            local.append(await measured(LocalBackend(FakeExecutor(), limits), time.process_time))
            marks: list[float] = []

            def cpu(marks: list[float] = marks) -> float:
                marks.append(time.process_time())
                return marks[-1] + cluster_cpu(session)

            ray = RayBackend(EXECUTOR, limits, address=cluster.address)
            everything.append(await measured(ray, cpu))
            driver.append(1000 * (marks[1] - marks[0]) / ROLLOUTS)
    over = [each - beside for each, beside in zip(everything, local, strict=True)]
    facts = {"rollouts": ROLLOUTS, "at_once": AT_ONCE}
    emit("ray_job.rollout_over_local", over, unit="CPU ms", limit=2, **facts)
    emit("ray_job.driver", driver, unit="CPU ms", **facts)
    emit("ray_job.local", local, unit="CPU ms", **facts)


if __name__ == "__main__":
    asyncio.run(main())
