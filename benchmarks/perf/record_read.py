"""What reading the record of a job with 10,000 finished slots costs, in CPU seconds.

Resume: a writer opens the record, takes the job over and reads every slot. Status: the numbers that
a status shows, inside a process, and as a process of its own with all its imports. Update: the
projected files after one more commit, of which the schedule and its progress grow with the job.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchflow_store.database import JobReader, JobWriter, Projector
from commit import PLAN, attempt, planned
from report import emit

STATUS = """
import sys
from pathlib import Path
from benchflow_store.database import JobReader
with JobReader(Path(sys.argv[1])) as reader:
    reader.totals(), reader.running_attempts()
"""


async def write(database: Path, count: int) -> None:
    """Write a job of `count` slots, of which the last one is still to run."""
    commits = iter([attempt(index) for index in range(count - 1)])
    async with JobWriter(database, "job") as writer:
        await writer.begin(PLAN, planned(count))

        async def work() -> None:
            for commit in commits:
                await writer.commit(commit)

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(work())


async def resume(database: Path, count: int) -> None:
    async with JobWriter(database, "job") as writer:
        assert len((await writer.begin()).slots) == count


def status(database: Path) -> None:
    with JobReader(database) as reader:
        reader.totals()
        reader.running_attempts()


def cpu(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return time.process_time() - before


def cpu_of_process(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def updates(database: Path, count: int) -> list[float]:
    """Return the CPU seconds of the first update, of one without news, and after one commit."""
    projector = Projector(database.parent, database)
    seconds = [cpu(projector.update), cpu(projector.update)]
    async with JobWriter(database, "job") as writer:
        await writer.begin()
        await writer.commit(attempt(count - 1))
    return [*seconds, cpu(projector.update)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--n", type=int, default=5, help="repetitions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        database = Path(name, "record.db")
        asyncio.run(write(database, given.slots))
        facts = {"unit": "CPU s", "slots": given.slots}
        repeat = range(given.n)
        found = [cpu(lambda: asyncio.run(resume(database, given.slots))) for _ in repeat]
        emit("record.resume", found, limit=0.3, **facts)
        found = [cpu(lambda: status(database)) for _ in repeat]
        emit("record.status", found, limit=0.4, **facts)
        found = [cpu_of_process("-c", STATUS, str(database)) for _ in repeat]
        emit("record.status_process", found, limit=0.4, **facts)
        first, idle, one = asyncio.run(updates(database, given.slots))
        emit("record.first_update", [first], **facts)
        emit("record.idle_update", [idle], **facts)
        emit("record.one_update", [one], **facts)


if __name__ == "__main__":
    main()
