"""Run as the first process of a pid namespace: confine a process with Landlock, dump and
restore it with CRIU, and print what it may do before and after.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DIRECTORY, CRIU = Path(sys.argv[1]), sys.argv[2]
CREATE_RULESET, RESTRICT_SELF, NO_NEW_PRIVS = 444, 446, 38
MAKE_FILES = 1 << 8
DEADLINE = 60.0


def confined(log):
    """Say at each SIGUSR1 whether a file can be made."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    libc = ctypes.CDLL(None, use_errno=True)
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(ctypes.c_uint64(MAKE_FILES)), 8, 0)
    assert rules >= 0, os.strerror(ctypes.get_errno())
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.syscall(RESTRICT_SELF, rules, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(rules)
    for number in range(3):
        os.write(log, f"waiting {number}\n".encode())
        signal.sigwait([signal.SIGUSR1])
        try:
            (DIRECTORY / f"made-{number}").touch()
        except PermissionError:
            os.write(log, b"refused\n")
        else:
            os.write(log, b"made\n")


def start():
    log = os.open(DIRECTORY / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)
        os.dup2(log, 2)
        os.closerange(3, 1024)
        confined(2)
        os._exit(0)
    os.close(log)
    return pid


def said(count):
    """Return the first `count` lines of the log, once they are there."""
    limit = time.monotonic() + DEADLINE
    while time.monotonic() < limit:
        lines = (DIRECTORY / "log").read_text().splitlines()
        if len(lines) >= count:
            return lines
        time.sleep(0.01)
    raise AssertionError((DIRECTORY / "log").read_text())


def criu(*arguments):
    command = [CRIU, *arguments, "-D", DIRECTORY / "images", "-v3", "-o", "criu.log"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + (DIRECTORY / "images" / "criu.log").read_text()


def main():
    (DIRECTORY / "images").mkdir()
    pid = start()
    said(1)
    os.kill(pid, signal.SIGUSR1)
    said(3)
    criu("dump", "-t", str(pid))
    os.waitpid(pid, 0)
    criu("restore", "-d")
    os.kill(pid, signal.SIGUSR1)
    print(json.dumps(said(5)))


main()
