"""Temporary directories of living, ended and foreign processes."""

import os
import subprocess
import sys

import pytest

from benchflow_contracts.scratch import remove_left_directories, scratch_directory, scratch_root

HOLDER = """
import os, sys
from benchflow_contracts.scratch import scratch_directory
with scratch_directory("grading") as path:
    (path / "closed").mkdir()
    (path / "closed" / "file").touch()
    (path / "closed").chmod(0)
    (path / "link").symlink_to("/")
    print(path, flush=True)
    sys.stdin.readline()
"""
FORKED = """
import os, sys, time
from benchflow_contracts.scratch import scratch_directory
# One write for each line, so that the lines of two processes do not mix.
with scratch_directory("grading") as path:
    child = os.fork()
    if child == 0:
        os.setsid()
        with scratch_directory("grading") as own:
            os.write(1, f"{own}\\n".encode())
            sys.stdin.readline()
        os._exit(0)
    os.write(1, f"{path}\\n".encode())
    os.waitpid(child, 0)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(place):
    started = []

    def begin(program=HOLDER):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, "TMPDIR": str(place)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def line(process):
    return process.stdout.readline().strip()


def test_what_a_killed_process_left_is_deleted_and_a_living_process_keeps_its_own(place, start):
    killed, living = start(), start()
    left, used = line(killed), line(living)
    assert remove_left_directories() == []
    killed.kill()
    killed.wait()
    assert [str(path) for path in remove_left_directories(dry_run=True)] == [left]
    assert os.path.lexists(left)
    assert [str(path) for path in remove_left_directories()] == [left]
    assert not os.path.lexists(left)
    assert remove_left_directories() == []
    assert os.path.lexists(used)
    living.communicate("\n")
    assert list(place.iterdir()) == []


def test_a_forked_child_does_not_keep_the_directories_of_its_parent(start):
    parent = start(FORKED)
    paths = sorted([line(parent), line(parent)])
    assert remove_left_directories() == []
    parent.kill()
    parent.wait()
    [removed] = remove_left_directories()
    [remaining] = [path for path in paths if os.path.lexists(path)]
    assert {str(removed), remaining} == set(paths)


def test_directories_that_only_look_like_ours_stay(place):
    (place / "elsewhere").mkdir()
    (place / "bf-scratch-link").symlink_to(place / "elsewhere")
    (place / "bf-scratch-file").touch()
    with scratch_directory("grading"):
        assert remove_left_directories() == []
    names = {"elsewhere", "bf-scratch-link", "bf-scratch-file", scratch_root().name}
    assert {path.name for path in place.iterdir()} == names


def test_a_directory_that_cannot_be_deleted_does_not_hide_the_others(place, monkeypatch):
    for name in ("a", "b", "c"):
        (place / f"bf-scratch-{name}" / "grading-x").mkdir(parents=True)
    monkeypatch.setattr("benchflow_contracts.scratch._remove", refuse_b)
    with pytest.raises(PermissionError):
        remove_left_directories()
    assert [path.name for path in place.iterdir()] == ["bf-scratch-b"]


def refuse_b(root):
    if root.name.endswith("b"):
        raise PermissionError("not yours")
    (root / "grading-x").rmdir()
    root.rmdir()


def test_a_temporary_directory_that_was_removed_is_made_again(place):
    scratch_root()
    (scratch_root() / ".lock").unlink()
    scratch_root().rmdir()
    with scratch_directory("grading") as path:
        assert path.is_dir()
