"""A runner that is killed leaves nothing behind after `bench sandbox prune`."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import DEADLINE, sleepers, until

BENCH = Path(sys.executable).with_name("bench")
# Of this run alone: another one on the machine has sleepers of its own.
MARK = str(10**9 + os.getpid())


def our_mounts() -> list[str]:
    """Return the mount points of local sandboxes, not those of containers of other tests."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    others = ("/docker/", "/benchflow/docker")
    return [p for p in points if "benchflow" in p and not any(each in p for each in others)]


def test_prune_removes_every_process_mount_and_sandbox_of_a_killed_runner(
    bench: Any, tmp_path: Path
) -> None:
    before = our_mounts()
    bench("tasks", "init", "tasks/sleeper")
    (tmp_path / "tasks/sleeper/solution/solve.sh").write_text(f"#!/bin/sh\nsleep {MARK}\n")
    runner = subprocess.Popen(
        [str(BENCH), "eval", "create", "--tasks-dir=tasks", "--agent=oracle", "--job-name=killed"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("the agent's process", lambda: len(sleepers(MARK)) == 1)
    finally:
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    until("a sandbox without an owner", lambda: orphans(bench, "killed"))
    assert not bench("sandbox", "list", "--scope=another", "--json")
    assert not bench("sandbox", "prune", "--scope=another", "--json")["sandboxes"]
    [removed] = bench("sandbox", "prune", "--scope=killed", "--json")["sandboxes"]
    assert (removed["identity"]["scope"], removed["owner_alive"]) == ("killed", False)
    until("the end of its processes", lambda: not sleepers(MARK))
    assert not orphans(bench, "killed")
    assert our_mounts() == before


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["SIGINT", "SIGTERM", "SIGHUP"]
)
def test_an_interrupted_runner_tears_down_by_itself(
    bench: Any, tmp_path: Path, number: signal.Signals
) -> None:
    bench("tasks", "init", "sleeper")
    (tmp_path / "sleeper/solution/solve.sh").write_text(f"#!/bin/sh\nsleep {MARK}\n")
    # As a background job of a script has it: with SIGINT ignored.
    command = f"trap '' INT; exec {shlex.quote(str(BENCH))} run sleeper --agent oracle"
    runner = subprocess.Popen(
        ["sh", "-c", command],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with runner:
        try:
            until("the agent's process", lambda: len(sleepers(MARK)) == 1)
            runner.send_signal(number)
            _, error = runner.communicate(timeout=DEADLINE)
        finally:
            runner.kill()
    assert runner.returncode == 130, error
    assert not sleepers(MARK)
    [log] = tmp_path.glob("jobs/*/events.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["kind"], last["status"]) == ("rollout_finished", "cancelled")
    record = json.loads(log.with_name("result.json").read_text())
    assert (record["status"], record["reward"]) == ("cancelled", None)


def orphans(bench: Any, scope: str) -> list[dict[str, Any]]:
    """Return the sandboxes of a scope whose owner is gone. Other tests kill runners, too."""
    known = boxes(bench)
    return [r for r in known if r["identity"]["scope"] == scope and not r["owner_alive"]]


def boxes(bench: Any) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = bench("sandbox", "list", "--json")
    return records
