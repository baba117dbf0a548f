"""What a rollout on Ray takes over a local one: CPU time of the driver, the actor and Ray itself.

A Ray node on the loopback interface and the local backend take turns. The CPU time of Ray is that
of all its processes, also of the head.

`rollout_over_local`: dispatches whose rollouts end at once, without a job. `job_over_local`: null
rollouts by `run_job`, each built by a worker from its dispatch, with record, facts and files; by
the difference of a long and a short job, so that their starts do not count.
"""

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path

from benchflow_contracts import Dispatch, WorkerBackend
from benchflow_jobs import run_job
from benchflow_jobs.local_backend import LocalBackend
from benchflow_jobs.planning import config_of
from benchflow_jobs.planning.job_config import BackendConfig
from benchflow_jobs_ray import LocalCluster, RayBackend
from benchflow_testing.fakes import FakeExecutor
from job_run import options
from null_engine import MEMORY
from report import emit

ROLLOUTS, AT_ONCE, RUNS = 2_000, 64, 5
SHORT, LONG, JOBS = 100, 1_100, 3
EXECUTOR = "benchflow_testing.fakes:FakeExecutor"


class CpuMeter:
    """The CPU time of this process and of all processes of a session, also of ended ones.

    Ray does not wait for its workers, so their time is read while they live, ten times a second.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._ticks: dict[int, int] = {}
        self._own = 0.0
        """The CPU time of the meter itself."""
        threading.Thread(target=self._follow, daemon=True).start()

    def read(self) -> tuple[float, float]:
        """Return the CPU seconds of this process, and those of the session."""
        self._look()
        ticks = sum(self._ticks.values())
        return time.process_time() - self._own, ticks / os.sysconf("SC_CLK_TCK")

    def _follow(self) -> None:
        while True:
            time.sleep(0.1)
            begun = time.thread_time()
            self._look()
            self._own += time.thread_time() - begun

    def _look(self) -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self._session:
                    self._ticks[int(entry.name)] = int(fields[11]) + int(fields[12])


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


async def measured(backend: WorkerBackend, meter: CpuMeter) -> tuple[float, float]:
    """Return the CPU milliseconds of a rollout on a new backend: here, and in the cluster."""
    await backend.start()
    begun = meter.read()
    await run(backend)
    ended = meter.read()
    await backend.close()
    here, there = (after - before for before, after in zip(begun, ended, strict=True))
    return 1000 * here / ROLLOUTS, 1000 * there / ROLLOUTS


async def job_cpu(slots: int, backend: BackendConfig, meter: CpuMeter) -> float:
    """Return the CPU seconds of a whole job of null rollouts."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        config = config_of(options(Path(name), slots, AT_ONCE))
        begun = sum(meter.read())
        report = await run_job(config.model_copy(update={"backend": backend}))
        if report.scored != slots:
            raise SystemExit(f"not every rollout has its reward: {report.errors}")
        return sum(meter.read()) - begun


async def rollout_cpu_ms(backend: BackendConfig, meter: CpuMeter) -> float:
    """Return the CPU milliseconds of a null rollout in a job, without those of the job."""
    short, long = [await job_cpu(slots, backend, meter) for slots in (SHORT, LONG)]
    return 1000 * (long - short) / (LONG - SHORT)


async def measure_jobs(cluster: LocalCluster, meter: CpuMeter) -> None:
    """Measure whole jobs on both in turns."""
    far = BackendConfig(name="ray", options={"address": cluster.address})
    on_ray: list[float] = []
    local: list[float] = []
    for _ in range(JOBS):
        local.append(await rollout_cpu_ms(BackendConfig(), meter))
        on_ray.append(await rollout_cpu_ms(far, meter))
    facts = {"unit": "CPU ms", "rollouts": LONG - SHORT, "at_once": AT_ONCE}
    over = [each - beside for each, beside in zip(on_ray, local, strict=True)]
    emit("ray_job.job_over_local", over, limit=2, **facts)
    emit("ray_job.job", on_ray, **facts)
    emit("ray_job.local_job", local, **facts)


async def main() -> None:
    """Measure both in turns."""
    # The workers import the null planes by name.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    limits = {"slots": AT_ONCE}
    local: list[float] = []
    driver: list[float] = []
    everything: list[float] = []
    async with LocalCluster([{"benchflow": AT_ONCE}]) as cluster:
        meter = CpuMeter(cluster.session or 0)
        for _ in range(RUNS):
            here, _idle = await measured(LocalBackend(FakeExecutor(), limits), meter)
            local.append(here)
            ray = RayBackend(EXECUTOR, limits, address=cluster.address)
            here, there = await measured(ray, meter)
            driver.append(here)
            everything.append(here + there)
        await measure_jobs(cluster, meter)
    over = [each - beside for each, beside in zip(everything, local, strict=True)]
    facts = {"rollouts": ROLLOUTS, "at_once": AT_ONCE}
    emit("ray_job.rollout_over_local", over, unit="CPU ms", limit=2, **facts)
    emit("ray_job.driver", driver, unit="CPU ms", **facts)
    emit("ray_job.local", local, unit="CPU ms", **facts)


if __name__ == "__main__":
    asyncio.run(main())
