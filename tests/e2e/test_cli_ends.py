"""How `bench` ends when it cannot continue: one error, its place, and the next command."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(sys.executable).with_name("bench")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the directory of a job, and not for its record."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


CREATE = ("eval", "create", "-p", "task", "--jobs-dir", "small", "--job-name", "j")


def test_a_job_on_a_full_disk_ends_with_its_path_and_a_remedy(
    bench: Any, tmp_path: Path, small_disk: Path
) -> None:
    bench("tasks", "init", "task")
    done = subprocess.run(
        [BENCH, *CREATE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    [error, hint] = done.stderr.splitlines()
    assert error.startswith("error: cannot write small/j/")
    assert "the file system is full" in error
    assert hint.startswith("hint: free at least")


def test_a_job_on_a_disk_that_is_clearly_too_small_makes_nothing(
    bench: Any, tmp_path: Path, small_disk: Path
) -> None:
    bench("tasks", "init", "task")
    done = subprocess.run(
        [BENCH, *CREATE, "-k", "2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    [error, hint] = done.stderr.splitlines()
    assert error.startswith("error: 2 rollouts need at least 90 kB below 'small/j', and 4")
    assert hint.startswith("hint: free space, or give a --jobs-dir")
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_becomes_full_pauses_the_job_until_it_has_room(
    bench: Any, tmp_path: Path, small_disk: Path
) -> None:
    bench("tasks", "init", "task")
    subprocess.run(["mount", "-o", "remount,size=760k", small_disk], check=True)
    command = [BENCH, *CREATE, "-a", "oracle", "-k", "16"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    [paused] = [line for line in done.stderr.splitlines() if line.startswith("the job is paused")]
    assert "small/j/" in paused
    assert "No space left on device" in paused or "the file system is full" in paused
    [resume] = [line for line in done.stderr.splitlines() if line.startswith("resume with: ")]
    before = bench("eval", "show", "j", "--jobs-dir", "small", "--json")
    assert before["scored"] < 16
    assert all(record["reward"] in {1, None} for record in before["records"])
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    bench(*shlex.split(resume.removeprefix("resume with: bench ")))
    after = bench("eval", "show", "j", "--jobs-dir", "small", "--json")
    assert (after["status"], after["scored"], after["mean_reward"]) == ("completed", 16, 1)


def test_an_interrupted_job_names_the_command_that_resumes_it(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "tasks/a")
    bench("tasks", "init", "tasks/b")
    solve = tmp_path / "tasks/b/solution/solve.sh"
    solve.write_text("#!/bin/sh\nsleep 600\n")
    command = ["eval", "create", "-p", "tasks", "-n", "1"]
    env = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(
        [BENCH, *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=env
    ) as child:
        assert child.stderr is not None
        said = next(line for line in child.stderr if line.startswith("[1/2]"))
        # A rollout that has not begun when it is cancelled leaves no record.
        while not list((tmp_path / "jobs").glob("*/b__*/events.jsonl")):
            assert child.poll() is None
            threading.Event().wait(0.01)
        child.send_signal(signal.SIGINT)
        assert "press Ctrl-C again" in next(child.stderr)
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read().splitlines()
    assert child.returncode == 130, (said, rest)
    [resume] = [line for line in rest if line.startswith("resume with: ")]
    [job] = (tmp_path / "jobs").iterdir()
    report = bench("eval", "show", job.name, "--json")
    assert (report["status"], report["stopped"]) == ("interrupted", "interrupted by SIGINT")
    assert [record["status"] for record in report["records"]] == ["completed", "cancelled"]
    assert shlex.split(resume.removeprefix("resume with: ")) == [
        "bench",
        *command,
        "--job-name",
        job.name,
    ]
