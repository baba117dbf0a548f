"""The library in real programs, over a real overlay root."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_sandbox_native import identity_library

HERE = Path(__file__).parent
SOURCES = sorted((HERE.parent / "csrc" / "identity").glob("*.c"))
DEVICE = os.makedev(0, 0xFBF01)
STATIC = """
#include <stdio.h>
#include <sys/stat.h>
int main(int count, char **names)
{
    struct stat info;
    if (count != 2 || stat(names[1], &info) != 0)
        return 1;
    return printf("%lu %lu", (unsigned long)info.st_ino, (unsigned long)info.st_dev) < 0;
}
"""


def compiler():
    found = next(filter(shutil.which, ["cc", "gcc", "clang"]), None)
    return found or pytest.fail("no C compiler: install gcc and libc6-dev")


def build(output, *arguments):
    command = [compiler(), "-std=c11", "-D_GNU_SOURCE", *arguments, "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def told(root, tmp_path_factory):
    """What programs in an overlay root are told about its files."""
    directory = tmp_path_factory.mktemp("identity")
    (directory / "static.c").write_text(STATIC)
    static = build(directory / "static", "-static", directory / "static.c")
    top = directory / "top"
    top.mkdir()
    world = [sys.executable, HERE / "identity_world.py", top, identity_library()]
    command = ["unshare", "--mount", *world, HERE / "identity_questions.py", static]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_way_to_ask_tells_the_pinned_number(told):
    assert set(told["pinned"].values()) == {(1 << 63) + 12345}, told["pinned"]
    assert told["coreutils"] == [str((1 << 63) + 12345)] * 2


def test_a_file_that_is_not_validly_pinned_keeps_its_own_number(told):
    assert told["others"] == {name: told["raw"][name] for name in told["others"]}


def test_all_of_the_root_has_one_constant_device_and_nothing_else_has_it(told):
    assert set(told["devices"]) == {DEVICE}
    assert told["proc_device"] == told["proc"] != DEVICE


def test_no_permission_on_the_file_is_needed(told):
    assert told["unreadable"] == (1 << 63) + 12346


def test_errno_is_the_kernels_and_a_success_keeps_it(told):
    assert told["errors"] == {
        "missing": 2,
        "bad descriptor": 9,
        "no directory": 20,
        "kept": [0, 77],
        "by number": [-1, 9],
    }


def test_a_static_program_is_not_reached(told):
    assert told["static"] == [str(told["raw"]["pinned"]), str(told["raw_device"])]
