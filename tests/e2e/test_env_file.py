"""A secret of `--env-file` reaches the agent, and neither a record nor a command line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(sys.executable).with_name("bench")
SECRET = "canary-5d1e77c0a9"
SOLVE = """#!/bin/sh
echo "the token is $TOKEN"
printf %s "$TOKEN" | wc -c > /workspace/greeting.txt
"""
TESTS = """#!/bin/sh
[ "$(cat /workspace/greeting.txt)" = 17 ] && right=1.0 || right=0.0
echo "{\\"reward\\": $right}" > /logs/verifier/reward.json
"""


def command_lines() -> bytes:
    """Return the command lines of all processes of this machine."""
    found = b""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += process.read_bytes() + b"\n"
        except OSError:
            continue
    return found


def test_a_secret_reaches_the_agent_alone(bench: Any, tmp_path: Path) -> None:
    bench("tasks", "init", "task")
    (tmp_path / "task/solution/solve.sh").write_text(SOLVE)
    (tmp_path / "task/tests/test.sh").write_text(TESTS)
    (tmp_path / "agent.env").write_text(f"TOKEN={SECRET}\n")
    command = [BENCH, "eval", "create", "-p", "task", "--env-file", "agent.env", "--json"]
    seen = False
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    ) as child:
        while child.poll() is None:
            seen = seen or SECRET.encode() in command_lines()
        assert child.stdout is not None
        report = json.loads(child.stdout.read())
    assert report["mean_reward"] == 1.0
    assert not seen
    files = [file for file in (tmp_path / "jobs").rglob("*") if file.is_file()]
    assert len(files) > 5
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert any(b"TOKEN" in file.read_bytes() for file in files)
