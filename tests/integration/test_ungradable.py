"""What an agent does to be rid of a bad score is scored 0, with the cause on the record."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(sys.executable).with_name("bench")

PIPE = "rm -f /workspace/greeting.txt; mkfifo /workspace/greeting.txt"
ENDLESS = "truncate -s 300G /workspace/greeting.txt"
DEEP = "cd /workspace; for i in $(seq 260); do mkdir d; cd d || exit 0; done"
BOMB = """python3 -c '
import os, time
while True:
    try: os.fork()
    except OSError: open("/tmp/full", "w").close(); time.sleep(0.01)
' & until [ -e /tmp/full ]; do :; done"""
FILLED = "dd if=/dev/zero of=/workspace/fill bs=1M 2>/dev/null; dd if=/dev/zero of=/tmp/fill bs=1M"
SHELLS = "rm -f /bin/sh /usr/bin/sh /bin/bash /usr/bin/bash /bin/dash /usr/bin/dash"
NOBODY = "sed '/^nobody:/d' /etc/passwd > /tmp/p; cat /tmp/p > /etc/passwd"
NO_USERS = "rm /etc/passwd; mkdir /etc/passwd"
MEMORY = "python3 -c 'bytearray(1 << 30)'; kill -9 -1"

TASK = """name = "NAME"
description = "Write a greeting."
artifacts = ["/workspace/greeting.txt"]

[environment]
user = "root"
memory_mb = 256
storage_mb = 300
pids = 64

[verifier]
type = "script"
isolation = "MODE"
protocol = "PROTOCOL"
timeout_sec = 8
"""
TEST = """#!/bin/sh
reward=0
[ "$(cat /workspace/greeting.txt 2>/dev/null)" != "hello" ] || reward=1
echo $reward > /logs/verifier/reward.txt
"""


def make(root: Path, name: str, script: str, mode: str, protocol: str) -> None:
    text = TASK.replace("NAME", name).replace("MODE", mode).replace("PROTOCOL", protocol)
    if name.startswith("user"):
        text += 'user = "nobody"\n'
    (root / "solution").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "task.toml").write_text(text)
    (root / "instruction.md").write_text("Write hello to /workspace/greeting.txt.\n")
    (root / "solution/solve.sh").write_text(f"#!/bin/sh\n{script}\nexit 0\n")
    (root / "tests/test.sh").write_text(TEST)
    (root / "tests/test.sh").chmod(0o755)


def job(root: Path, sandbox: str) -> tuple[dict[str, dict[str, Any]], str]:
    words = ["--tasks-dir", "tasks", "--agent", "oracle", "--sandbox", sandbox, "--retries", "0"]
    command = [str(BENCH), "eval", "create", *words, "--concurrency", "2", "--job-name", "job"]
    done = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True)
    paths = (root / "jobs/job").glob("*/result.json")
    records = [json.loads(path.read_bytes()) for path in paths]
    assert records, done.stderr
    return {record["task_id"]: record for record in records}, done.stderr


ATTACKS = {
    "local": [
        ("pipe", PIPE, "twin", "benchflow", "a reader may wait for without end"),
        ("pipe-shared", PIPE, "shared", "harbor", "a reader may wait for without end"),
        ("pipe-brought", PIPE, "hermetic", "benchflow", "is refused"),
        ("endless", ENDLESS, "twin", "harbor", "a reader may wait for without end"),
        ("deep", DEEP, "twin", "benchflow", "deeper than 200"),
        ("bomb", BOMB, "shared", "harbor", "no process is left|[Cc]annot fork"),
        ("bomb-brought", BOMB, "hermetic", "benchflow", "no process is left"),
        ("shells", SHELLS, "twin", "harbor", "cannot be started"),
        ("user-removed", NOBODY, "twin", "benchflow", "no user 'nobody'"),
        ("users-removed", NO_USERS, "shared", "harbor", "no user 'nobody'"),
        ("memory", MEMORY, "twin", "benchflow", None),
        ("filled", FILLED, "twin", "harbor", None),
    ],
    "docker": [
        ("pipe", PIPE, "twin", "harbor", "a reader may wait for without end"),
        ("deep", DEEP, "twin", "benchflow", "deeper than 200"),
        ("user-removed", NOBODY, "twin", "harbor", "no user 'nobody'"),
        ("memory", MEMORY, "twin", "harbor", None),
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sandbox", ["local", "docker"])
def test_an_agent_that_makes_itself_ungradable_is_scored_0(
    tmp_path: Path, root: None, sandbox: str
) -> None:
    for name, script, mode, protocol, _ in ATTACKS[sandbox]:
        make(tmp_path / "tasks" / name, name, script, mode, protocol)
    records, said = job(tmp_path, sandbox)
    for name, _, _, _, why in ATTACKS[sandbox]:
        record = records[name]
        assert (record["status"], record["reward"]) == ("completed", 0.0), record
        if why is not None:
            assert record["cause"] and record["cause"]["by"] == "agent", record
            assert re.search(why, record["cause"]["what"]), record
    assert "Traceback" not in said


@pytest.mark.timeout(120)
def test_a_failed_grading_has_one_status_everywhere(tmp_path: Path, root: None) -> None:
    make(tmp_path / "tasks/task", "task", "true", "hermetic", "benchflow")
    (tmp_path / "tasks/task/tests/test.sh").write_text("#!/bin/sh\nexit 3\n")
    records, said = job(tmp_path, "local")
    assert (records["task"]["status"], records["task"]["reward"]) == ("ungraded", None)
    assert records["task"]["cause"]["by"] == "task"
    assert "ungraded" in said
    [home] = (tmp_path / "jobs/job").glob("task__*")
    assert json.loads((home / "tree.json").read_bytes())["status"] == "ungraded"
    assert (home / "trainer/verifiers.jsonl").read_bytes() == b""
    for words in (("eval", "show", "job"), ("rollout", "show", home), ("rollout", "tree", home)):
        shown = bench(tmp_path, *words)
        assert "ungraded" in shown, (words, shown)
    bench(tmp_path, "eval", "export", "job", "--output", "exported")
    [trial] = (tmp_path / "exported").glob("task__*/result.json")
    exported = json.loads(trial.read_bytes())
    assert exported["verifier_result"] is None
    assert exported["exception_info"]["exception_type"] == "RewardError"


@pytest.mark.timeout(120)
def test_a_solution_is_ungraded_where_its_server_may_not_run_beside_the_tests(
    tmp_path: Path, root: None
) -> None:
    make(tmp_path / "tasks/task", "task", "sleep 4321 &", "twin", "harbor")
    task = tmp_path / "tasks/task/task.toml"
    wider = 'may_grade_in_place = true\nnetwork = "allowlist"\nallowed_hosts = ["example.test"]\n'
    task.write_text(f'{task.read_text()}{wider}[agent]\nnetwork = "none"\n')
    record = job(tmp_path, "local")[0]["task"]
    assert (record["status"], record["reward"]) == ("ungraded", None)
    assert "it runs: sleep 4321" in record["error"]["message"]


def bench(cwd: Path, *words: object) -> str:
    command = [str(BENCH), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr
