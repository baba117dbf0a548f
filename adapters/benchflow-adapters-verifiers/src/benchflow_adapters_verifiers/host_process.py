"""The processes in which environments of verifiers run, one for each environment."""

import asyncio
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import EnvironmentError_, TaskError, UsageError

PYTHON_VARIABLE: Final = "BENCHFLOW_VERIFIERS_PYTHON"
"""The operator's variable with the Python that has verifiers and the environments."""
UNSUPPORTED_HINT: Final = "see docs/guides/verifiers.md for the environments that BenchFlow runs"
_START: Final = """
import importlib.util as u, sys
home = sys.argv[1]
where = [home]
spec = u.spec_from_file_location("benchflow_world_host", home + "/__init__.py",
                                 submodule_search_locations=where)
sys.modules[spec.name] = module = u.module_from_spec(spec)
spec.loader.exec_module(module)
from benchflow_world_host.server import main
main(*sys.argv[2:])
"""
_START_SEC: Final = 300.0
_MOST_LINE: Final = 64 << 20


class HostProcess:
    """A process of the operator's Python that runs one environment. Any thread may use it."""

    def __init__(self, python: str, ident: str, arguments: Mapping[str, Any]) -> None:
        """Start the process, and wait until it has loaded the environment.

        Raises:
            UsageError: The Python cannot be started.
            EnvironmentError_: The environment cannot be loaded.
            TaskError: BenchFlow cannot run the environment; `where` names the field.
        """
        home = Path(__file__).with_name("world_host")
        words = [python, "-P", "-c", _START, str(home), ident, json.dumps(dict(arguments))]
        self.ident = ident
        self._waiting: dict[int, Future[Any]] = {0: Future()}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._is_over = False
        """Whether nothing reads answers any more: a later request would wait for ever."""
        loaded = self._waiting[0]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
            )
        except OSError as error:
            raise UsageError(
                f"{python!r} cannot be started: {error}", hint=f"correct ${PYTHON_VARIABLE}"
            ) from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            loaded.result(_START_SEC)
        except TimeoutError as error:
            self.close()
            raise EnvironmentError_(
                f"{ident!r} of verifiers did not load in {_START_SEC:g} s", retryable=True
            ) from error
        except (EnvironmentError_, TaskError):
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self._is_over and self._process.poll() is None

    def request(self, method: str, **params: object) -> "Future[Any]":
        """Send a request. The future has the result, an `EnvironmentError_` or a `TaskError`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                future.set_exception(self._gone("its process has ended"))
                return future
            number = next(self._numbers)
            self._waiting[number] = future
            line = json.dumps({"id": number, "method": method, "params": params})
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                del self._waiting[number]
                future.set_exception(self._gone(str(error)))
        return future

    async def ask(self, method: str, **params: object) -> Any:  # noqa: ANN401 - JSON
        """Send a request and wait for its result."""
        return await asyncio.wrap_future(self.request(method, **params))

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and stream is not self._process.stdout:
                with self._lock:
                    try:
                        stream.close()
                    except OSError:
                        continue
        if threading.current_thread() is not self._reader:
            self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_MOST_LINE):
            try:
                message = json.loads(line)
                future = self._waiting.pop(message["id"])
            except (ValueError, KeyError, TypeError):
                # A process whose answers cannot be read would let later requests wait for ever.
                self._process.kill()
                break
            if not future.set_running_or_notify_cancel():
                continue
            if "error" in message:
                future.set_exception(self._error(message))
            else:
                future.set_result(message["result"])
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._gone("its process has ended"))

    def _error(self, message: Mapping[str, Any]) -> EnvironmentError_ | TaskError:
        problem = f"{self.ident!r} of verifiers: {message['error']}"
        if "field" in message:
            where = f"verifiers:{message['field']}"
            return TaskError(problem, where=where, hint=UNSUPPORTED_HINT)
        return EnvironmentError_(problem)

    def _gone(self, why: str) -> EnvironmentError_:
        return EnvironmentError_(f"{self.ident!r} of verifiers is gone: {why}", retryable=True)


_hosts: dict[tuple[str, str, str], HostProcess] = {}
_hosts_lock = threading.Lock()


def host_process(ident: str, arguments: Mapping[str, Any]) -> HostProcess:
    """Return the process of an environment. The first call starts it, for all later ones.

    The process ends with this one.

    Raises:
        UsageError: The operator has not named a Python.
        EnvironmentError_: The environment cannot be loaded.
        TaskError: BenchFlow cannot run the environment; `where` names the field.
    """
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        raise UsageError(
            f"${PYTHON_VARIABLE} does not name a Python with verifiers",
            hint=f"export {PYTHON_VARIABLE}=/path/of/a/venv/bin/python",
        )
    key = (python, ident, json.dumps(dict(arguments), sort_keys=True))
    with _hosts_lock:
        found = _hosts.get(key)
        if found is None or not found.is_alive:
            if found is not None:
                found.close()
            found = _hosts[key] = HostProcess(python, ident, arguments)
        return found


def close_hosts() -> None:
    """End all processes of environments."""
    with _hosts_lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.close()


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object of a host.

    Raises:
        EnvironmentError_: The value is something else.
    """
    if not isinstance(value, dict):
        raise EnvironmentError_(f"a host of verifiers sent {type(value).__name__}")
    return cast("dict[str, Any]", value)
