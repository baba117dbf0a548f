"""What a job costs around its rollouts: `run_job` with rollouts whose every plane does nothing.

A null rollout is the one of `null_engine.py`, with one step. The job has its record, its facts and
the files of its rollouts in a memory file system when there is one. The CPU time has everything:
the plan, the schedule, the record, the projections and the report at the end.

Resume: a job of 10,000 slots, of which the last one is still to run, from the call of `resume_job`
to the first dispatch. Status: `bench job status` of that job, as a process with all its imports.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import null_job
from benchflow_contracts import Event
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobOptions, plan_of, resume_job, run_job
from benchflow_jobs.planning import SlotTable, plan_revision, variant_plans, write_plan
from benchflow_jobs.scheduling import Schedule
from benchflow_store.database import DATABASE_FILE, JobWriter, Projector
from commit import attempt
from null_engine import MEMORY, Gate, peak_rss_mb
from report import emit

HERE = Path(__file__).resolve()
BENCH = str(Path(sys.executable).with_name("bench"))
STAGE = ("benchflow_jobs", "benchflow_store.database", "benchflow_analysis", "apsw", "duckdb")
"""What the help of the command line must not load."""


class FirstDispatch:
    """A listener that notes the CPU time and the open files at the first dispatch."""

    def __init__(self) -> None:
        self.at = 0.0
        self.open_files = 0

    def planned(self, _job: str, _slots: object, _rewards: object) -> None:
        """Note nothing."""

    def limited(self, _limits: object) -> None:
        """Note nothing."""

    def extended(self, _total: int) -> None:
        """Note nothing."""

    def started(self, _slot: object) -> Callable[[Event], None]:
        """Note them. No rollout has begun."""
        if not self.at:
            self.at, self.open_files = time.process_time(), open_files()
        return lambda _: None

    def attempted(self, _slot: object, _completion: object) -> None:
        """Note nothing."""

    def finished(self, _slot: object, _record: object) -> None:
        """Note nothing."""


def open_files() -> int:
    """Return the number of descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def options(home: Path, slots: int, at_once: int) -> JobOptions:
    """Return a job of one null task."""
    if not (home / "tasks").exists():
        write_task(home / "tasks" / "null")
    return JobOptions(
        tasks_dir=home / "tasks",
        run=null_job.config(),
        jobs_dir=home / "jobs",
        job_name="null",
        repeats=slots,
        concurrency=at_once,
    )


def rollouts(home: Path, slots: int) -> dict[str, float]:
    """Return the CPU milliseconds of a null rollout in a job with 64 at once."""
    before = time.process_time()
    report = asyncio.run(run_job(options(home, slots, 64)))
    took = time.process_time() - before
    if report.mean_reward != 1.0 or report.scored != slots:
        raise SystemExit(f"not every rollout has its reward: {report.errors}")
    return {"cpu_ms": took * 1000 / slots, "rss_peak_mb": peak_rss_mb()}


def crowd(home: Path, slots: int) -> dict[str, float]:
    """Hold `slots` rollouts at their prompt at once; return their memory and descriptors."""

    async def run() -> dict[str, float]:
        gate, first = Gate(slots), FirstDispatch()
        null_job.GATES.append(gate)
        async with asyncio.TaskGroup() as group:
            job = group.create_task(run_job(options(home, slots, slots), listener=first))
            job.add_done_callback(lambda _: gate.full.set())
            await gate.full.wait()
            descriptors = open_files() - first.open_files
            held = peak_rss_mb()
            gate.open.set()
        if job.result().scored != slots:
            raise SystemExit("not every rollout has its reward")
        return {
            "descriptors": descriptors / slots,
            "rss_held_mb": round(held, 1),
            "rss_peak_mb": round(peak_rss_mb(), 1),
        }

    return asyncio.run(run())


async def write_job(home: Path, slots: int) -> Path:
    """Write a job whose driver was killed before the last slot; return its directory."""
    planned = plan_of(options(home, slots, 4))
    directory = home / "jobs" / "null"
    directory.mkdir(parents=True)
    write_plan(directory, planned.plan)
    indexes = iter(range(slots - 1))
    async with JobWriter(directory / DATABASE_FILE, directory.name) as writer:
        await writer.begin(plan_revision(planned.plan), planned.plan.slots)

        async def work() -> None:
            for index in indexes:
                commit = attempt(index, slot=planned.plan.slots[index].name)
                (directory / commit.completion.rollout).mkdir()
                await writer.commit(commit)

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(work())
    Projector(directory, directory / DATABASE_FILE).update()
    return directory


def resume(home: Path, _slots: int) -> dict[str, float]:
    """Return the CPU seconds of `resume_job` to its first dispatch, and to its end."""
    first = FirstDispatch()
    before = time.process_time()
    report = asyncio.run(resume_job(home / "jobs" / "null", listener=first))
    if report.scored != report.planned:
        raise SystemExit(f"not every rollout has its reward: {report.errors}")
    return {"first": first.at - before, "whole": time.process_time() - before}


def queued_kb(home: Path, slots: int) -> float:
    """Return the memory of 1,000 slots that wait, in the plan and in the schedule."""
    plan = plan_of(options(home, slots, 4)).plan
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    table = SlotTable.of([v.id for v in plan.variants], plan.tasks, plan.slots.places())
    schedule = Schedule(variant_plans(plan))
    for variant, _, _ in plan.slots.places():
        schedule.add(variant)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(table) == schedule.unresolved == slots
    return used / slots * 1000 / 1024


def status_cpu(directory: Path) -> float:
    """Return the CPU seconds of `bench job status` as a process."""
    before = os.times()
    command = [BENCH, "job", "status", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    children = after.children_user - before.children_user
    return children + after.children_system - before.children_system


def loaded_by_help() -> list[str]:
    """Return the modules of this stage that `bench --help` loads."""
    code = "import sys; from benchflow.cli.entry import run; run(['--help']); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return sorted(name for name in done.stdout.split() if name.startswith(STAGE))


def child(kind: str, home: Path, slots: int) -> dict[str, float]:
    """Run one bench in a process of its own."""
    command = [sys.executable, str(HERE), "--child", kind, "--home", str(home), "--slots"]
    done = subprocess.run([*command, str(slots)], check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def scratch() -> Generator[Path]:
    """Yield a directory in memory, if there is such a file system."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        yield Path(name)


def measure_rollouts(slots: int, repetitions: int) -> None:
    """Measure null rollouts, 64 at once."""
    found: list[dict[str, float]] = []
    for _ in range(repetitions):
        with scratch() as home:
            found.append(child("rollouts", home, slots))
    samples = [each["cpu_ms"] for each in found]
    peak = round(max(each["rss_peak_mb"] for each in found), 1)
    facts = {"rollouts": slots, "at_once": 64, "rss_peak_mb": peak}
    emit("job_run.rollout_of_1_step", samples, unit="CPU ms", limit=3.0, **facts)


def measure_crowd(slots: int) -> None:
    """Measure null rollouts that all run at once."""
    with scratch() as home:
        found = child("crowd", home, slots)
    peak, descriptors = found.pop("rss_peak_mb"), found.pop("descriptors")
    emit("job_run.crowd", [peak], unit="MB", limit=350, rollouts=slots, **found)
    emit("job_run.crowd_descriptors", [descriptors], unit="each", limit=1, rollouts=slots)


def measure_finished(slots: int, repetitions: int) -> None:
    """Measure the status and the resume of a job that is almost finished."""
    facts = {"unit": "CPU s", "slots": slots}
    with scratch() as home:
        directory = asyncio.run(write_job(home, slots))
        samples = [status_cpu(directory) for _ in range(repetitions)]
        emit("job_run.status", samples, limit=0.4, **facts)
        found: list[dict[str, float]] = []
        for number in range(repetitions):
            copy = home / str(number)
            shutil.copytree(home / "jobs", copy / "jobs")
            found.append(child("resume", copy, slots))
    emit("job_run.resume", [each["first"] for each in found], limit=0.3, **facts)
    emit("job_run.resume_with_report", [each["whole"] for each in found], **facts)


def main() -> None:
    """Measure, each bench in a process of its own."""
    kinds = {"rollouts": rollouts, "crowd": crowd, "resume": resume}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2_000)
    parser.add_argument("--crowd", type=int, default=1_000, help="rollouts at once")
    parser.add_argument("--slots", type=int, default=10_000, help="slots of the finished job")
    parser.add_argument("--n", type=int, default=3, help="repetitions")
    parser.add_argument("--child", choices=kinds)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(kinds[given.child](given.home, given.slots)))
        return
    measure_rollouts(given.rollouts, given.n)
    measure_crowd(given.crowd)
    measure_finished(given.slots, given.n)
    with scratch() as home:
        kilobytes = queued_kb(home, given.slots)
    emit("job_run.memory_of_1000_slots", [kilobytes], unit="kB", limit=100, slots=given.slots)
    found = loaded_by_help()
    emit("job_run.loaded_by_help", [len(found)], unit="modules", limit=0, modules=found)


if __name__ == "__main__":
    main()
