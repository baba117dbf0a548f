"""The two libraries that other programs load: what they need, and what the engine's one tells."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_sandbox_native import engine_library, identity_library

SOURCES = Path(__file__).parent.parent / "csrc"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
BUILT = ("-shared", "-fPIC", "-nostdlib", "-ffreestanding", "-Os")
OTHER = ("setpriv", "--reuid=12345", "--clear-groups")
LIMITED = ("prlimit", "--nofile=17:4711", "--cpu=5:unlimited", *OTHER)
UNABLE = ("setpriv", "--bounding-set=-sys_resource")
ASK = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number = {"x86_64": 302, "aarch64": 261}[os.uname().machine]
def ask(pid, resource, new=None):
    found = (ctypes.c_uint64 * 2)()
    arguments = [ctypes.c_long(each) for each in (number, pid, resource)]
    answer = libc.syscall(*arguments, new, found)
    return list(found) if answer == 0 else ctypes.get_errno()
pid, new = int(sys.argv[1]), (ctypes.c_uint64 * 2)(1, 1)
limits = [ask(pid, each) for each in range(16)]
print(json.dumps([limits, ask(pid, 99), ask(1 << 22, 0), ask(pid, 0, new)]))
"""


@pytest.mark.parametrize(
    ("library", "needed"),
    [(identity_library(), set()), (engine_library(), {"environ"})],
    ids=["identity", "engine"],
)
def test_it_needs_no_library_and_only_symbols_that_every_libc_has(library, needed):
    command = ["readelf", "--wide", "--dynamic", "--dyn-syms", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert not [line for line in lines if "NEEDED" in line]
    missing = [line.split()[-1] for line in lines if " UND " in line and line.split()[-1] != "UND"]
    assert set(missing) == {"__errno_location", *needed}


@pytest.mark.parametrize("name", ["identity", "engine"])
def test_the_source_compiles_without_a_warning(tmp_path, name):
    compiler = next(filter(shutil.which, ["cc", "gcc", "clang"]), None)
    assert compiler is not None, "no C compiler: install gcc and libc6-dev"
    sources = sorted((SOURCES / name).glob("*.c"))
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", *BUILT, *STRICT]
    done = subprocess.run(
        [*command, "-o", tmp_path / "built.so", *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_root_that_may_not_ask_is_told_the_limits_of_another_user(root):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*LIMITED, "cat"], **pipes, bufsize=0) as process:
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"  # it is another user by now
        command = [*UNABLE, sys.executable, "-c", ASK, str(process.pid)]
        environment = {**os.environ, "LD_PRELOAD": str(engine_library())}
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
        process.stdin.close()
    limits, unknown, nobody, changed = json.loads(done.stdout)
    expected = [resource.getrlimit(number) for number in range(16)]
    expected[resource.RLIMIT_NOFILE] = (17, 4711)
    expected[resource.RLIMIT_CPU] = (5, resource.RLIM_INFINITY)
    assert limits == [[each % (1 << 64) for each in pair] for pair in expected]
    assert unknown in {errno.EPERM, errno.EINVAL}
    assert (nobody, changed) == (errno.ESRCH, errno.EPERM)


TRACKED = """
import os, socket, struct
if os.geteuid() == 0:
    os.setresuid(12345, 12345, 12345)  # what is refused is sent back
request = struct.pack("=IHHIIBBH", 20, int(os.environ["KIND"], 16), 0x301, 7, 0, 0, 0, 0)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as asked:
    asked.sendmsg([request])
    (kind,) = struct.unpack_from("=H", asked.recv(4096), 24)
near, far = socket.socketpair()
near.sendmsg([request])
print(f"{kind:x}", far.recv(100) == request)
"""


@pytest.mark.parametrize(("asked", "sent"), [("101", "107"), ("105", "105")])
def test_only_a_walk_of_all_tracked_connections_is_made_shorter(asked, sent):
    environment = {**os.environ, "LD_PRELOAD": str(engine_library()), "KIND": asked}
    command = [sys.executable, "-c", TRACKED]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    assert done.stdout.split() == [sent, "True"]
