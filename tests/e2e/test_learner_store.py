"""A sequential job: rollouts share a learner store, and kills neither lose nor double a version."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RolloutRecord
from benchflow_engine.scaffold import write_task
from benchflow_jobs.planning import plan_job, read_job
from benchflow_store import read_finished_rollouts
from benchflow_store.database import DATABASE_FILE, JobReader

pytestmark = pytest.mark.timeout(300)

JOB = """
[job]
name = "j"
[dataset]
paths = ["tasks"]
[design]
schedule = "sequential-shared"
replications = 4
[retry]
retries = 0
max_attempts = 1
"""
SOLUTION = """#!/bin/sh
echo "$BENCHFLOW_SEED" >>"$BENCHFLOW_LEARNER_DIR/seeds"
ln -sf /etc/passwd "$BENCHFLOW_LEARNER_DIR/link"
[ "$BENCHFLOW_SEED" = {} ] || echo 'hello, world' >/workspace/greeting.txt
"""
TESTS = """#!/bin/sh
grep -q hello /workspace/greeting.txt && echo 1 >/logs/verifier/reward.txt
"""
KILLED = """
import sys
from crash_points import CrashPoint
from benchflow.cli import main
CrashPoint(sys.argv[1], "before", int(sys.argv[2])).arm()
main(sys.argv[3:])
"""


def kill_before(home: Path, function: str, call: int, *words: str) -> None:
    """Run `bench` until SIGKILL ends it before a call of `function`."""
    support = Path(__file__).parents[1] / "support"
    with (home / "killed.log").open("w+") as log:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, function, str(call), *words],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(support)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            timeout=120,
            check=False,
        )
        log.seek(0)
        assert done.returncode == -signal.SIGKILL, log.read()


def counted(job: Path) -> list[RolloutRecord]:
    """Return the records that count, in schedule order, from the database."""
    with JobReader(job / DATABASE_FILE) as reader:
        return [RolloutRecord.model_validate_json(each.record or "") for each in reader.slots()]


def test_versions_survive_kills_and_a_failed_rollout_leaves_the_one_before(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    write_task(tmp_path / "tasks/one")
    plan = plan_job(read_job(tmp_path / "job.toml", {"dataset.paths": [str(tmp_path / "tasks")]}))
    seeds = [str(plan.seed(index)) for index in range(4)]
    # The second rollout has no score.
    (tmp_path / "tasks/one/solution/solve.sh").write_text(SOLUTION.format(seeds[1]))
    (tmp_path / "tasks/one/tests/test.sh").write_text(TESTS)

    # The third rollout is killed between its store and its record, and runs again.
    kill_before(tmp_path, "benchflow_engine.rollout:write_result", 3, "job", "run", "job.toml")
    # Then its record is on disk, and not committed.
    commit = "benchflow_jobs.job_record:DatabaseRecord.commit"
    kill_before(tmp_path, commit, 1, "job", "resume", "jobs/j")
    bench("job", "resume", "jobs/j", code=1)

    job = tmp_path / "jobs/j"
    records = counted(job)
    assert [each.reward for each in records] == [1, None, 1, 1]
    assert [each.attempt for each in records] == [1, 1, 2, 1]
    uses = [each.learner for each in records if each.learner is not None]
    assert uses[1].after is None
    made = [use for use in uses if use.after is not None]
    assert [use.after and use.after.generation for use in made] == [1, 2, 3]
    assert [use.after and use.after.rollout for use in made] == [
        each.rollout_id for each in records if each.reward
    ]
    assert uses[1].before == uses[0].after
    assert all(later.before == earlier.after for earlier, later in pairwise(made))
    newest = job / records[3].rollout_id / "learner"
    assert (newest / "seeds").read_text().split() == [seeds[0], seeds[2], seeds[3]]
    assert [path.name for path in newest.iterdir()] == ["seeds"]
    metrics = (job / "facts/metrics_long.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in metrics]
    generations = [each["value"] for each in values if each["name"] == "learner_generation"]
    assert generations == [1, 1, 2, 3]
    exported = read_finished_rollouts(job, records)
    assert [each.store_generation for each in exported] == [0, 1, 1, 2]
