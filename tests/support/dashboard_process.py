"""The dashboard as a process, and the jobs directories that browser tests open."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchflow_contracts import NodeError, RolloutTree
from made_rollouts import write_inputs, write_rollout
from made_trees import random_tree, tree_of_all_kinds, tree_of_climbs

BENCH = Path(sys.executable).with_name("bench")
CONFIG = """
grace_sec = 0.1
check_sec = 1

[[rewards]]
kind = "tool_errors"

[[alerts]]
name = "tools"
kind = "threshold"
metric = "tool_error_rate"
above = 0.5
min_n = 1
by = "version"
"""
WAIT_SEC = 120.0


class DashboardProcess:
    """`bench monitor run` on `home/jobs`: the pages of jobs, and those of monitor mode.

    A server that was killed may start again; it then has the same URL.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.jobs = home, home / "jobs"
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self.jobs.mkdir(parents=True, exist_ok=True)
        (home / "monitor.toml").write_text(CONFIG)

    def start(self, *options: str) -> None:
        """Start the server, and return when the server listens."""
        port = self.url.rpartition(":")[2] or "0"
        own = ("--no-open", "--port", port, "--database", "monitor.db")
        with (self.home / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [BENCH, "monitor", "run", *own, *options],
                cwd=self.home,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | own_directories(self.home) | {"NO_COLOR": "1"},
            )
        assert self._process.stderr is not None
        lines: list[str] = []
        for line in self._process.stderr:
            lines.append(line)
            if "http://" in line:
                self.url = line[line.index("http://") :].strip()
                return
        raise AssertionError(f"the server did not start: {''.join(lines)}")

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the server by a signal, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(timeout=WAIT_SEC)
        assert process.stderr is not None
        process.stderr.close()
        return code

    def get(self, path: str) -> str:
        """Return the text of a page, as a client without a browser gets the page."""
        with urllib.request.urlopen(self.url + path, timeout=WAIT_SEC) as response:
            return response.read().decode()

    def post_records(self, records: Sequence[dict[str, Any]]) -> None:
        """Report records of a production agent."""
        body = json.dumps({"records": records}).encode()
        request = urllib.request.Request(f"{self.url}/v1/benchflow/records", data=body)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=WAIT_SEC) as response:
            assert json.load(response)["refused"] == []

    def post_form(self, path: str, **fields: str) -> str:
        """Send a form as a page does, and return the page that follows."""
        token = re.search(r'name="csrf" value="([^"]+)"', self.get("/help"))
        assert token is not None
        body = urlencode({"csrf": token[1], **fields}).encode()
        with urllib.request.urlopen(self.url + path, data=body, timeout=WAIT_SEC) as response:
            return response.read().decode()

    def wait_for(self, path: str, condition: Callable[[str], bool]) -> None:
        """Return when the text of a page meets the condition."""
        wait_until(lambda: condition(self.get(path)), path)


def own_directories(home: Path) -> dict[str, str]:
    """Return the variables that keep a server from the index, notes and sandboxes of others."""
    kinds = ("CACHE", "DATA", "STATE", "CONFIG")
    scratch = home / "tmp"
    scratch.mkdir(exist_ok=True)
    own = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in kinds}
    return own | {"TMPDIR": str(scratch)}


def wait_until(condition: Callable[[], bool], what: object = "") -> None:
    """Return when the condition holds; fail after `WAIT_SEC`."""
    end = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def run_demo(home: Path) -> str:
    """Run a rollout that forks at a question, in `home/jobs`; return its id. Takes 5 s."""
    done = subprocess.run(
        [BENCH, "demo", "--json"], cwd=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name: str = json.loads(done.stdout)["rollout_id"]
    return name


def begin_demo(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the same rollout; return its process and its id as soon as its log exists."""
    jobs = home / "jobs"
    known = set(jobs.iterdir())
    process = subprocess.Popen(
        [BENCH, "demo", "--json"],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    fresh: list[Path] = []

    def has_begun() -> bool:
        fresh[:] = [path.parent for path in jobs.glob("*/events.jsonl") if path.parent not in known]
        return bool(fresh)

    wait_until(has_begun, "the log of the demo")
    return process, fresh[0].name


def fill(jobs: Path) -> None:
    """Write rollouts of each kind: `all-kinds`, `large`, and three of the job `walk`."""
    end = time.time() - 3_600
    trees = {"all-kinds": tree_of_all_kinds(), "large": random_tree(300)}
    for name, made in trees.items():
        tree = replace(made, rollout_id=name)
        write_inputs(write_rollout(tree, jobs / name, started_at=end - 90, finished_at=end))
    for number in range(3):
        tree = replace(tree_of_climbs([0, 0, 1][: number + 1]), rollout_id=f"walk-{number}")
        if number == 1:
            tree = unscored(tree)
        last = end - 60 * number
        directory = jobs / "walk" / tree.rollout_id
        write_inputs(write_rollout(tree, directory, started_at=last - 30, finished_at=last))


def unscored(tree: RolloutTree) -> RolloutTree:
    """Return the tree of a rollout that ended at its agent."""
    for node in tree.nodes:
        node.results.clear()
    error = NodeError(boundary="agent", type="AgentError", message="404 from the model endpoint")
    return replace(tree, status="failed", error=error)


def production_records(rollout: str, text: str = "ok", *, fails: bool) -> list[dict[str, Any]]:
    """Return the records of a production rollout with one step, and with `text` in each field."""
    now = time.time() - 60
    shared = {"rollout": rollout, "resource": {"service": text, "version": "1.8"}}
    step = {
        "kind": "step",
        "index": 0,
        "ts": now,
        "started_at": now - 2,
        "prompt": text,
        "reasoning": text,
        "message": text,
        "tool_calls": [{"id": "c", "name": text, "arguments": {text: text}}],
        "observations": [
            {"tool_call_id": "c", "content": text, "status": "failed" if fails else "completed"}
        ],
        "model": text,
    }
    return [shared | step, shared | {"kind": "ended", "index": 1, "ts": now + 1}]
