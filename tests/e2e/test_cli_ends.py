"""How `bench` ends when it cannot continue: one error, its place, and the next command."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(sys.executable).with_name("bench")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the directory of a job, and not for its rollouts."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_job_on_a_full_disk_ends_with_its_path_and_a_remedy(
    bench: Any, tmp_path: Path, small_disk: Path
) -> None:
    bench("tasks", "init", "task")
    command = [BENCH, "eval", "create", "-p", "task", "--jobs-dir", "small", "--job-name", "j"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    *_, error, hint = done.stderr.splitlines()
    assert error.startswith("error: cannot write 'small/j/")
    assert "No space left on device" in error
    assert hint.startswith("hint: ")
    assert "free space" in hint
    assert "Traceback" not in done.stderr


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
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read().splitlines()
    assert child.returncode == 130, (said, rest)
    [resume] = [line for line in rest if line.startswith("resume with: ")]
    [job] = (tmp_path / "jobs").iterdir()
    assert shlex.split(resume.removeprefix("resume with: ")) == [
        "bench",
        *command,
        "--job-name",
        job.name,
    ]
