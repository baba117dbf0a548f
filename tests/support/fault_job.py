"""A job of `bench eval create` in a process group of its own, and what must hold of its record."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchflow_contracts import StoreError
from benchflow_engine.scaffold import write_task
from benchflow_jobs.control_socket import SOCKET_FILE
from benchflow_store.database import (
    DATABASE_FILE,
    UNCOMPARED,
    AttemptRow,
    EmptyDatabaseError,
    JobReader,
    comparable,
)
from job_records import check_whole, comparable_facts, unfinished_files
from watching import sleepers, until

BENCH = Path(sys.executable).with_name("bench")
_TIMES_AND_IDS = (*UNCOMPARED["facts/trials.jsonl"],)


def write_tasks(home: Path, solution: str) -> None:
    """Write two tasks with this solution."""
    for name in ("one", "two"):
        if not (home / "tasks" / name).exists():
            write_task(home / "tasks" / name)
        (home / "tasks" / name / "solution/solve.sh").write_text(solution)


class FaultJob:
    """One job below `home`, which has the directory `tasks`. Its processes end with `close`."""

    def __init__(self, home: Path, name: str, *words: object) -> None:
        self.home, self.name = home, name
        self.directory = home / "jobs" / name
        self.scratch = home / "tmp"
        self.scratch.mkdir(exist_ok=True)
        settings = ("--tasks-dir=tasks", "--jobs-dir=jobs", f"--job-name={name}")
        self.command: tuple[object, ...] = ("eval", "create", *settings, *words)
        """The command of `bench` that runs the job."""
        self.seconds = 0.0
        """The time of the last `run`."""
        self.variables: Mapping[str, str] = {}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *before: str) -> subprocess.Popen[str]:
        """Start a runner of the job, or one that resumes the job; `before` is before `bench`."""
        env = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(self.scratch), **self.variables}
        runner = subprocess.Popen(
            [*before, str(BENCH), *map(str, self.command)],
            cwd=self.home,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(runner)
        return runner

    def run(self, code: int = 0) -> str:
        """Run the job to its end; return what it says."""
        begin = time.monotonic()
        runner = self.start()
        _, said = runner.communicate(timeout=120)
        self.seconds = time.monotonic() - begin
        assert runner.returncode == code, said
        assert "Traceback" not in said, said
        return said

    def close(self) -> None:
        """Kill what runs."""
        for runner in self._started:
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
            if runner.stderr is not None:
                runner.stderr.close()

    def attempts(self) -> list[AttemptRow]:
        """Return all attempts in the record, none before there is a record."""
        try:
            with JobReader(self.directory / DATABASE_FILE) as reader:
                return list(reader.attempts())
        except (StoreError, EmptyDatabaseError):
            return []

    def scored(self) -> dict[int, str]:
        """Return the rollouts that count, by slot."""
        counted = (each for each in self.attempts() if each.counted and each.status == "scored")
        return {each.index: each.rollout for each in counted}

    def until_scored(self, count: int) -> None:
        """Wait until the record has scores of `count` slots."""
        until(f"{count} scored slots", lambda: len(self.scored()) >= count)

    def summary(self) -> dict[str, Any]:
        """Return the summary of the last run."""
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_bytes())
        return summary

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all rollouts on disk, also of those that do not count."""
        return [json.loads(path.read_bytes()) for path in self.directory.glob("*/result.json")]

    def check_complete(self, slots: int, kept: Mapping[int, str]) -> None:
        """Require one score of 1 for each slot, and that the rollouts of `kept` still count."""
        check_whole(self.directory / DATABASE_FILE, set(range(slots)))
        scored = self.scored()
        assert len(scored) == slots
        assert {index: scored[index] for index in kept} == dict(kept)
        results = self._results()
        assert [each["rollout_id"] for each in results] == [scored[i] for i in range(slots)]
        assert {each["reward"] for each in results} == {1.0}
        check_rewards(self.records())

    def check_same_as(self, other: "FaultJob") -> None:
        """Require the facts and results of another job with the same plan."""
        assert comparable_facts(self.directory) == comparable_facts(other.directory)
        ours, theirs = (_without_times(each._results()) for each in (self, other))
        assert ours == theirs
        left_out = {"job", "directory"}
        one, two = self.summary(), other.summary()
        assert {**one, **dict.fromkeys(left_out)} == {**two, **dict.fromkeys(left_out)}

    def check_nothing_left(self, mark: str) -> None:
        """Require that no sandbox, process, socket or file of the job's runners is left."""
        listed = [str(BENCH), "sandbox", "list", "--json"]
        env = {**os.environ, "TMPDIR": str(self.scratch)}
        found = json.loads(subprocess.run(listed, env=env, capture_output=True, check=True).stdout)
        places = {self.directory.resolve()}
        ours = [each for each in found if Path(each["identity"]["job_dir"] or "/") in places]
        assert ours == []
        until("the end of its processes", lambda: not sleepers(mark))
        assert list(self.scratch.glob("bf-scratch-*")) == []
        assert not (self.directory / SOCKET_FILE).exists()
        assert unfinished_files(self.directory) == []

    def _results(self) -> list[dict[str, Any]]:
        lines = (self.directory / "results.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]


@contextmanager
def fault_job(home: Path, name: str, *words: object) -> Generator[FaultJob]:
    """Yield a job whose processes end with the block."""
    job = FaultJob(home, name, *words)
    try:
        yield job
    finally:
        job.close()


def check_rewards(records: Iterable[Mapping[str, Any]]) -> None:
    """Require that each record of an oracle has a reward of 1, or none and a cause."""
    for record in records:
        assert record["reward"] in {1.0, None}, record
        cut = record["status"] == "cancelled"
        assert record["reward"] == 1.0 or cut or record["error"] is not None, record


def _without_times(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return comparable("facts/trials.jsonl", results)
