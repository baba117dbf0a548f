"""`bench` as forks of one process, because imports take longer than the work of most commands.

A fork has the arguments, the directory, the variables and the output files of its caller. It has
a process group of its own, and no standard input.
"""

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from session_reports import add_processor_seconds

_IMPORTED = (
    *(f"benchflow.cli.{name}" for name in ("agent", "branch", "demo", "env", "eval", "gateway")),
    *(f"benchflow.cli.{name}" for name in ("job", "live_table", "resume", "sandbox", "tasks")),
    *("benchflow_agent_acp.session_factory", "benchflow_engine.rollout"),
    *("benchflow_env_manifest.environment", "benchflow_reward.factory"),
    *("benchflow_sandbox_local.provider",),
)
"""What most commands import. None of it starts a thread, which a fork would not have."""
_LARGEST_REQUEST = 1 << 20


class ForkedBench:
    """The process that forks. It starts with the first command and ends with `close`."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `bench` with `words` to its end.

        Raises:
            TimeoutExpired: It did not end in time, and was killed with its process group.
        """
        given = json.dumps({"words": words, "cwd": str(cwd), "env": dict(env)}).encode()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            ours, theirs = socket.socketpair()
            with ours:
                fds = (out.fileno(), err.fileno(), theirs.fileno())
                with theirs:
                    socket.send_fds(self._ours, [given], fds)
                ours.settimeout(timeout)
                try:
                    code, processor = json.loads(ours.recv(256))
                except TimeoutError:
                    raise subprocess.TimeoutExpired(["bench", *words], timeout) from None
            add_processor_seconds(processor)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(["bench", *words], code, out.read(), err.read())

    def close(self) -> None:
        """End the process. Commands that run are killed."""
        self._ours.close()
        self._process.wait()


def _serve(requests: socket.socket) -> None:
    """Fork for each request; send the exit code of the fork on the socket of the request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is requests:
                    given, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
                    if not given:
                        for pid, _ in running.values():
                            os.killpg(pid, signal.SIGKILL)
                        return
                    caller = socket.socket(fileno=fds[2])
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        requests.close()
                        _run(json.loads(given), fds)
                    for fd in fds[:2]:
                        os.close(fd)
                    pidfd = os.pidfd_open(pid)
                    running[pidfd] = pid, caller
                    selector.register(pidfd, selectors.EVENT_READ)
                    selector.register(caller, selectors.EVENT_READ, pid)
                elif key.data is not None:
                    # The caller does not wait any more.
                    selector.unregister(key.fileobj)
                    with suppress(ProcessLookupError):
                        os.killpg(key.data, signal.SIGKILL)
                else:
                    pidfd = key.fd
                    pid, caller = running.pop(pidfd)
                    selector.unregister(pidfd)
                    os.close(pidfd)
                    with suppress(KeyError):
                        selector.unregister(caller)
                    _, status, used = os.wait4(pid, 0)
                    answer = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
                    with caller, suppress(OSError):
                        caller.send(json.dumps(answer).encode())


def _run(given: dict[str, object], fds: Sequence[int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds[:2], 1):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        os.chdir(str(given["cwd"]))
        os.environ.clear()
        os.environ.update(given["env"])
        # As an interpreter that starts. Those of the process that forks may be there already.
        added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in added if path and path not in sys.path]
        tempfile.tempdir = None
        sys.argv = ["bench", *given["words"]]
        importlib.import_module("benchflow.cli").main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        atexit._run_exitfuncs()  # as an interpreter that ends
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
