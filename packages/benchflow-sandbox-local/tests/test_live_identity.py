"""SQLite's file identity in a process that moves to another mount, with and without the cure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_sandbox_native import identity_library

pytestmark = pytest.mark.usefixtures("root")
REFUSED = "database is locked"


def second_writers(directory, *, library, pinned):
    """Return what a second connection is told at depth 0, 1, 2 and 3, up to an admission."""
    script = Path(__file__).with_name("moving_sqlite.py")
    mode = "pinned" if pinned else "not pinned"
    command = ["unshare", "--mount", sys.executable, script, directory, mode]
    preload = {"LD_PRELOAD": str(identity_library())} if library else {}
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | preload, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(",")


def test_a_second_writer_is_refused_at_every_depth(tmp_path):
    assert second_writers(tmp_path, library=True, pinned=True) == [REFUSED] * 4


def test_without_the_library_a_second_writer_is_admitted_at_once(tmp_path):
    assert second_writers(tmp_path, library=False, pinned=True) == [REFUSED, "admitted"]


def test_without_the_pins_a_second_writer_is_admitted_two_forks_deep(tmp_path):
    told = second_writers(tmp_path, library=True, pinned=False)
    assert told == [REFUSED, REFUSED, "admitted"]
