"""A program reports to a real server, and its rollouts are scored, shown and exported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_monitor import Monitor, MonitorLimits
from dashboard_process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


BENCH = (Path(sys.executable).with_name("bench"),)
CONFIG = """
grace_sec = 0.2

[[rewards]]
kind = "tool_errors"

[[rewards]]
kind = "reasoning"
pattern = "parcel"
name = "thinks_of_parcel"
"""


class Server:
    """`bench monitor run` as a process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "monitor.db"
        (directory / "monitor.toml").write_text(CONFIG)
        (directory / "jobs").mkdir()
        self.process = subprocess.Popen(
            [*BENCH, "monitor", "run", "--port", "0", "--no-open", "--database", self.database],
            cwd=directory,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(directory / "cache")},
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "http://" in line:
                self.url = line[line.index("http://") :].strip()
                return
        raise AssertionError("the server did not start")

    def children(self) -> list[int]:
        """Return the processes of the server: the one that folds and scores."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def bench(self, *words: str) -> str:
        """Return what a command prints about the server's database."""
        done = subprocess.run(
            [*BENCH, "monitor", *words, "--database", str(self.database)],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("monitor"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def shown(server: Server) -> dict[str, Any]:
    return report(server, "talk-1", closed=1)


def report(server: Server, name: str, *, closed: int) -> dict[str, Any]:
    """Report a rollout; return what is shown when so many are scored."""
    limits = MonitorLimits(flush_sec=0.05)
    spool = server.directory / "spool"
    monitor = Monitor(server.url, service="shop", version="2", spool=spool, limits=limits)
    with monitor.rollout(name) as rollout:
        rollout.step(
            prompt="Where is my parcel?",
            reasoning="I look for the parcel.",
            tool_calls=[{"id": "c1", "name": "track", "arguments": {"id": 7}}],
            observations=[{"tool_call_id": "c1", "content": "at sea"}],
            usage={"input_tokens": 12, "output_tokens": 3},
            model="m",
        )
        rollout.step(message="It is at sea.", stop_reason="end_turn")
    monitor.close(20)
    end = time.monotonic() + 40
    while True:
        view = json.loads(server.bench("show", "--json"))
        if view["closed"] == closed:
            return view
        assert time.monotonic() < end, view
        time.sleep(0.2)


def test_a_reported_rollout_is_scored_by_the_rewards_of_the_configuration(
    server: Server, shown: dict[str, Any]
) -> None:
    rewards = {row["source"]: row["cells"]["2"]["mean"] for row in shown["rewards"]}
    assert rewards == {"tool_errors": 1.0, "thinks_of_parcel": 1.0}
    spaces = {row["source"]: row["space"] for row in shown["rewards"]}
    assert spaces == {"tool_errors": "action", "thinks_of_parcel": "reasoning"}

    rollout = json.loads(server.bench("show", "talk-1", "--json"))

    assert (rollout["service"], rollout["steps"], rollout["status"]) == ("shop", 2, "completed")
    text = server.bench("show", "talk-1")
    for part in ("Where is my parcel?", "track", "at sea", "It is at sea.", "tool_errors"):
        assert part in text
    assert "tool errors" in server.bench("show")


def test_a_rollout_becomes_a_row_and_a_task(server: Server, shown: dict[str, Any]) -> None:
    assert shown["closed"] == 1

    row = json.loads(server.bench("export", "talk-1", "--reward", "tool_errors"))
    server.bench("export", "talk-1", "--task", "parcel")

    assert row["reward"] == 1.0
    assert row["prompt"] == [{"role": "user", "content": "Where is my parcel?"}]
    assert row["completion"][-1]["content"] == "It is at sea."
    task = server.directory / "parcel"
    assert (task / "instruction.md").read_text() == "Where is my parcel?\n"
    assert not (task / "solution").exists()


def test_sigterm_ends_the_server_and_keeps_what_it_accepted(
    server: Server, shown: dict[str, Any]
) -> None:
    assert shown["closed"] == 1
    (child,) = server.children()
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(timeout=20) in {0, -signal.SIGTERM, 143}
    assert not is_alive(child)
    assert json.loads(server.bench("show", "talk-1", "--json"))["steps"] == 2


def test_a_killed_process_of_folding_is_replaced_and_ends_with_its_server(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        report(server, "talk-1", closed=1)
        (first,) = server.children()
        os.kill(first, signal.SIGKILL)
        report(server, "talk-2", closed=2)
        (second,) = server.children()
        assert second != first
    finally:
        server.kill()
    wait_until(lambda: not is_alive(second), "the process that folds")


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
