"""What a durable commit to the record database costs.

Depth 1: one commit after the other, each beside an append and fdatasync of the same bytes, in one
interleaved loop. The journal of a shared disk changes tenfold within minutes, so that only the
ratio inside one loop means anything.

Depth 64: 64 attempts wait at once, and the writer commits them in groups. A whole commit is 26
rows: record, attempt, 5 metrics, 8 events, 10 artifacts, and the cursor.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchflow_contracts import Completion, RolloutRecord
from benchflow_store.database import (
    ArtifactRef,
    Commit,
    EventRow,
    JobWriter,
    Metric,
    PlannedSlot,
    PlanRevision,
)
from report import emit

PLAN = PlanRevision(config_digest="sha256:0")
EVENT = {"node": "n1", "phase": "execute", "detail": "x" * 100}


def planned(count: int) -> list[PlannedSlot]:
    return [
        PlannedSlot(f"a/task-{i}#0", "a", f"task-{i}", 0, f"sha256:{i:064x}") for i in range(count)
    ]


def attempt(index: int, slot: str | None = None) -> Commit:
    """Return a whole commit, with a record of about 1.5 kB."""
    record = RolloutRecord(
        rollout_id=f"task-{index}__{index:08x}",
        task_id=f"task-{index}",
        task_digest=f"sha256:{index:064x}",
        agent="oracle",
        model=None,
        sandbox="local",
        status="completed",
        reward=1.0,
        rewards={"tests": 1.0},
        images={"main": "sha256:" + "0" * 800},
        finished_at=1_000_000.5,
    )
    completion = Completion(
        job="job",
        index=index,
        slot=slot or f"a/task-{index}#0",
        attempt=1,
        epoch=1,
        rollout=record.rollout_id,
        status="scored",
        record=record.model_dump(mode="json"),
    )
    return Commit(
        completion,
        started=1_000.0,
        finished=1_010.0,
        metrics=[Metric(f"metric-{n}", n / 4) for n in range(5)],
        events=[EventRow("phase_entered", EVENT, 1_000.0 + n) for n in range(8)],
        refs=[ArtifactRef(f"role-{n}", f"{index * 100 + n:064x}", 1_000) for n in range(10)],
    )


def size_of(commit: Commit) -> int:
    """Return the number of bytes that a commit says."""
    text = repr((commit.completion.record, commit.metrics, commit.events, commit.refs))
    return len(text.encode())


async def depth_1(directory: Path, n: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of `n` commits, and of `n` appends of the same bytes."""
    commits = [attempt(index) for index in range(n)]
    ours: list[float] = []
    floor: list[float] = []
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with JobWriter(directory / "record.db", "job") as writer:
        await writer.begin(PLAN, planned(n))
        for commit in commits:
            data = b"x" * size_of(commit)
            before = time.perf_counter()
            os.write(log, data)
            os.fdatasync(log)
            between = time.perf_counter()
            await writer.commit(commit)
            ours.append((time.perf_counter() - between) * 1000)
            floor.append((between - before) * 1000)
    os.close(log)
    return ours, floor


async def depth_64(directory: Path, n: int) -> tuple[float, float]:
    """Return the commits per second, and the CPU microseconds of each, with 64 waiting."""
    commits = iter([attempt(index) for index in range(n)])
    async with JobWriter(directory / "record.db", "job") as writer:
        await writer.begin(PLAN, planned(n))

        async def work() -> None:
            for commit in commits:
                await writer.commit(commit)

        wall, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(work())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return n / wall, cpu / n * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=400, help="commits at depth 1")
    parser.add_argument("--wide", type=int, default=6400, help="commits with 64 waiting")
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        ours, floor = asyncio.run(depth_1(Path(name), given.n))
    ratio = statistics.median(ours) / statistics.median(floor)
    emit("commit.depth_1", ours, ratio=round(ratio, 3), limit_ratio=1.5)
    emit("commit.append_and_fdatasync", floor)
    rates: list[float] = []
    costs: list[float] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=given.directory) as name:
            rate, cost = asyncio.run(depth_64(Path(name), given.wide))
        rates.append(rate)
        costs.append(cost)
    emit("commit.depth_64", rates, unit="commits/s", limit=5000, limit_busy=3000, of=given.wide)
    emit("commit.depth_64_cpu", costs, unit="CPU us", limit=100, of=given.wide)


if __name__ == "__main__":
    main()
