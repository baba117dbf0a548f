"""The process that starts a Ray cluster on this machine, and ends it when its standard input ends.

It is the subreaper of every process of the cluster. So nothing is left, also of a start that fails
and of a driver that was killed. It reads a line of JSON with the nodes, and prints one for each:
`{"node": 0, "pid": .., "address": ".."}` or `{"error": ".."}`. Then it reads further requests:
`{"add": {"benchflow": 4}}` and `{"kill": 1}`.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from .process_tree import become_subreaper, descendants, kill_descendants

_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
_ERROR: Final = re.compile(r"\bFATAL\b|^\w*Error: ")
_MOST_PATH: Final = 27
_REMOVE_SEC: Final = 2.0
_LOOPBACK: Final = "127.0.0.2"
"""Not 127.0.0.1: Ray replaces that by an address which other machines reach."""


class _Cluster:
    def __init__(self, directory: str, start_sec: float) -> None:
        self._directory = directory
        self._start_sec = start_sec
        self._nodes: list[Any] = []
        self._cluster: Any = None

    def add(self, resources: dict[str, float]) -> dict[str, Any]:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - a second of imports

        settings = {
            # Actors of hosts need no CPU of Ray's, and without one no idle workers start.
            "num_cpus": 0,
            "resources": resources,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "node_ip_address": _LOOPBACK,
            "include_dashboard": False,
        }
        if self._cluster is None:
            # So that the cause is known before the other side stops to wait.
            _wait_longer(0.8 * self._start_sec)
            self._cluster = Cluster()
            settings["temp_dir"] = self._directory
        node = self._cluster.add_node(**settings)
        self._nodes.append(node)
        pid = node.all_processes["raylet"][0].process.pid
        return {"node": len(self._nodes) - 1, "pid": pid, "address": self._cluster.address}

    def kill(self, number: int) -> dict[str, Any]:
        """Kill each process of a node at once, as when its machine fails."""
        raylet = self._nodes[number].all_processes["raylet"][0].process.pid
        # The raylet first, so that it starts no further worker.
        doomed = [raylet, *descendants(raylet)]
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return {"node": number, "killed": len(doomed)}


def _wait_longer(seconds: float) -> None:
    """Let a node take `seconds` to start. Ray's own limit of 30 is fixed, and too short at times.

    Ray asks for the new node until that limit has passed, so the question waits for the node.
    """
    services: Any = import_module("ray._private.services")
    get_node = services.get_node

    def get_node_later(*arguments: Any) -> Any:  # noqa: ANN401 - of Ray
        end = time.monotonic() + seconds
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    services.get_node = get_node_later


def _reported(directory: Path) -> str:
    """Return the last error in the logs of Ray's processes, with the name of the log."""
    found = ""
    for name in ("gcs_server.out", "raylet.out", "runtime_env_agent.log", "dashboard_agent.log"):
        for log in directory.glob(f"session_*/logs/{name}"):
            with suppress(OSError):
                lines = log.read_text(errors="replace").splitlines()
                errors = [line.strip() for line in lines if _ERROR.search(line)]
                found = f"; {name}: {errors[-1][:300]}" if errors else found
    return found


def _remove(directory: Path) -> None:
    """Delete a directory in which a start of the main thread may still create files."""
    end = time.monotonic() + _REMOVE_SEC
    while directory.exists() and time.monotonic() < end:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    """Serve requests until standard input ends."""
    become_subreaper()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints to standard output
    place = tempfile.gettempdir()
    if len(place) > _MOST_PATH:
        # The path of a socket has at most 107 bytes, of which Ray needs 80.
        place = "/tmp"  # noqa: S108 - the directory below is private
    directory = tempfile.mkdtemp(prefix="bf-ray-", dir=place)
    # Ray notes the address of the newest cluster there, for `ray.init()` of every program.
    os.environ["RAY_TMPDIR"] = directory
    Path(directory, "ray").mkdir()
    requests: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        kill_descendants(os.getpid())
        _remove(Path(directory))
        os._exit(0)

    # A start that blocks does not keep the end of standard input from being seen.
    threading.Thread(target=read, daemon=True).start()
    cluster = _Cluster(directory, float(sys.argv[1]))
    while True:
        request = requests.get()
        try:
            if "kill" in request:
                answer = cluster.kill(request["kill"])
            else:
                answer = cluster.add(request["add"])
        except Exception as error:  # noqa: BLE001 - the other side raises it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}{_reported(Path(directory))}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
