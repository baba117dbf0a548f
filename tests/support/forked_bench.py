"""`bench` and Python as forks of one process: imports take longer than most commands work.

A fork has the arguments, the directory, the variables and the files of its caller, and a process
group of its own.
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
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

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
    """The process that forks, until `close`."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="forked-bench-")
        home = Path(self._directory.name)
        self._address = str(home / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        self.programs = home / "bin"
        """A directory for PATH. Its `bench` is a fork, in whatever process calls it, and so is its
        `run-python`, which runs the code of its first argument as `python -W error` does."""
        self.programs.mkdir()
        for name in ("bench", "run-python"):
            program = self.programs / name
            program.write_text(
                _PROGRAM.format(python=sys.executable, address=self._address, name=name)
            )
            program.chmod(0o755)

    def run(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `bench` with `words` to its end, without an input.

        Raises:
            TimeoutExpired: It did not end in time, and was killed with its process group.
        """
        given = json.dumps({"words": ["bench", *words], "cwd": str(cwd), "env": dict(env)}).encode()
        with (
            Path(os.devnull).open() as nothing,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fork:
                fork.settimeout(timeout)
                try:
                    fork.connect(self._address)
                    socket.send_fds(fork, [given], [nothing.fileno(), out.fileno(), err.fileno()])
                    fork.recv(256)
                    code, processor = json.loads(fork.recv(256))
                except TimeoutError:
                    raise subprocess.TimeoutExpired(["bench", *words], timeout) from None
            add_processor_seconds(processor)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(["bench", *words], code, out.read(), err.read())

    def close(self) -> None:
        """End the process. Commands that run are killed."""
        with self._process:
            pass
        self._directory.cleanup()


_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

given = {{"words": [{name!r}, *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ)}}
fork = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
fork.connect({address!r})
socket.send_fds(fork, [json.dumps(given).encode()], [0, 1, 2])
pid = json.loads(fork.recv(256))
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code, _ = json.loads(fork.recv(256))
os._exit(code if code >= 0 else 128 - code)
"""


def _serve(listener: socket.socket) -> None:
    """Fork for each connection; send the fork's id, and when it ends its code and its time."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    caller, _ = listener.accept()
                    given, fds, _, _ = socket.recv_fds(caller, _LARGEST_REQUEST, 3)
                    if not given:
                        caller.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        listener.close()
                        caller.close()
                        _run(json.loads(given), fds)
                    for fd in fds:
                        os.close(fd)
                    with suppress(OSError):
                        caller.send(json.dumps(pid).encode())
                    pidfd = os.pidfd_open(pid)
                    running[pidfd] = pid, caller
                    selector.register(pidfd, selectors.EVENT_READ)
                    selector.register(caller, selectors.EVENT_READ, pid)
                elif key.fd == 0:
                    for pid, _ in running.values():
                        os.killpg(pid, signal.SIGKILL)
                    return
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


def _run(given: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        # Those of the process that forks remember whether its files can seek.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(str(given["cwd"]))
        os.environ.clear()
        os.environ.update(given["env"])
        # As an interpreter that starts. Those of the process that forks may be there already.
        added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in added if path and path not in sys.path]
        tempfile.tempdir = None
        program, *words = given["words"]
        if program == "bench":
            sys.argv = [program, *words]
            importlib.import_module("benchflow.cli").main()
        else:
            _run_python(*words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        atexit._run_exitfuncs()  # as an interpreter that ends
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_python(code: str, *words: str) -> None:
    warnings.simplefilter("error")
    sys.argv = ["-c", *words]
    sys.path.insert(0, "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, vars(module))
    sys.exit(0)


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
