"""What a rollout leaves in the memory of its runner: 64 of one job, four at once.

The resident set is read when a rollout has ended, after a collection. Others run then, so the
least of some early ones is held against the least of the last: their difference, for each rollout
between the two. `--sandbox local` runs on the host's own root and needs no engine.
"""

import argparse
import asyncio
import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchflow_contracts import Event, RolloutRecord
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs.options import JobOptions
from benchflow_jobs.runner import run_job
from report import emit

ROLLOUTS, EARLY, WINDOW = 64, 12, 8
LIMIT = 128 * 1024
"""Bytes for each rollout: 6 MiB over 48 of them, as `tests/e2e` has it."""


class Watch:
    """Notes the resident set whenever a rollout ends."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.rewards: list[float | None] = []

    def planned(self, _job: str, _slots: object, _rewards: object) -> None:
        """Nothing is shown."""

    def limited(self, _limits: object) -> None:
        """Nothing is shown."""

    def attempted(self, _slot: object, _completion: object) -> None:
        """Nothing is counted."""

    def extended(self, _total: int) -> None:
        """The job is not extended."""

    def started(self, _slot: object) -> Callable[[Event], None]:
        """Listen to nothing."""
        return lambda _: None

    def finished(self, _slot: object, record: RolloutRecord) -> None:
        """Read how much memory there is."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self.seen.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.rewards.append(record.reward)


def main() -> None:
    """Run the job and emit what it left for each rollout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sandbox", default="docker")
    sandbox: str = parser.parse_args().sandbox
    watch = Watch()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name) / "tasks" / "tiny")
        options = JobOptions(
            tasks_dir=Path(name) / "tasks",
            run=run_config(agent="oracle", sandbox=sandbox),
            jobs_dir=Path(name) / "jobs",
            job_name="queued",
            repeats=ROLLOUTS,
        )
        asyncio.run(run_job(options, listener=watch))
    if watch.rewards != [1.0] * ROLLOUTS:
        raise SystemExit(f"not every rollout has its reward: {watch.rewards}")
    early, late = min(watch.seen[EARLY : EARLY + WINDOW]), min(watch.seen[-WINDOW:])
    left = (late - early) / (ROLLOUTS - EARLY - WINDOW)
    facts = {"rollouts": ROLLOUTS, "rss_mb": [round(size / 2**20, 1) for size in (early, late)]}
    emit(f"{sandbox}.queued_left_per_rollout", [left], unit="bytes", limit=LIMIT, **facts)


if __name__ == "__main__":
    main()
