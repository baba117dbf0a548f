"""A user without any privilege gets scored rollouts: nothing can be frozen for that user."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

UID = 65534
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "clawsbench"
MAIN = "from benchflow.cli import main; main()"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("root")]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the other user; pytest's own is private."""
    path = Path(tempfile.mkdtemp(prefix="unprivileged-"))
    shutil.copytree(BENCHMARK, path / "benchmarks/clawsbench", symlinks=True)
    for found in (path, *path.rglob("*")):
        os.chown(found, UID, UID, follow_symlinks=False)
    yield path
    shutil.rmtree(path)


def bench(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Another user cannot run the interpreter of a virtual environment below /root.
    python = f"/usr/bin/python{sysconfig.get_python_version()}"
    return subprocess.run(
        [python, "-c", MAIN, *words],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        user=UID,
        group=UID,
        extra_groups=[],
        cwd=home,
    )


def test_a_job_on_clawsbench_is_scored(home: Path) -> None:
    done = bench(
        home, "eval", "create", "--tasks-dir", "benchmarks/clawsbench/tasks", "--agent", "oracle"
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_bytes()) for path in home.glob("jobs/*/*/result.json")]
    assert [record["reward"] for record in records] == [1.0] * 5


def test_the_demo_forks_and_every_child_is_scored(home: Path) -> None:
    done = bench(home, "demo")
    assert done.returncode == 0, done.stderr
    [record] = [json.loads(path.read_bytes()) for path in home.glob("jobs/*/result.json")]
    assert (record["leaves"], record["scored"]) == (3, 3)


def test_the_doctor_says_what_is_missing_and_does_not_fail(home: Path) -> None:
    done = bench(home, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert "freeze no" in found["sandbox local"]["detail"]
    assert found["sandbox local"]["status"] == "warn"
