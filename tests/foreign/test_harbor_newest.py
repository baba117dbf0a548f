"""Harbor's newest release reads our exports as the pinned release does."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import benchflow
import pytest
from benchflow_export import write_export
from benchflow_store import StoredRollout
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(400)]

HARBOR = "harbor==0.25.0"
JUDGE = Path(__file__).parents[1] / "e2e/check_harbor_job.py"
TASKS = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks"


def _judged(python: Path, jobs: Path, *names: str) -> Any:
    done = subprocess.run(
        [python, "-I", JUDGE, *names],
        cwd=jobs,
        env={**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(jobs), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_newest_harbor_reads_our_exports_as_the_pinned_one(
    harbor_python: str, tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs"
    write_export("harbor", [fake_finished_rollout(), fake_hostile_rollout()], jobs / "odd")
    write_export("harbor", [], jobs / "none")
    task = TASKS / "book-the-review-room"
    result = asyncio.run(
        benchflow.run(task, agent="oracle", branch="ask-user", jobs_dir=tmp_path / "rollouts")
    )
    assert result.directory is not None
    write_export("harbor", [StoredRollout(result.directory).read_finished()], jobs / "forked")
    names = ("odd", "none", "forked")
    newest = _judged(install_once(HARBOR, interpreter=harbor_python), jobs, *names)
    assert newest == _judged(Path(harbor_python), jobs, *names)
    rewards = [trial["rewards"]["reward"] for trial in newest["forked"]["trials"].values()]
    assert sorted(rewards) == [0.0, 0.25, 1.0]
