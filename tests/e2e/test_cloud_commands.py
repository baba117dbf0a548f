"""`bench` with the sandbox of each cloud, as a user runs it.

The SDKs run against our servers in another process, and never on a cloud.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

BENCH = Path(sys.executable).with_name("bench")
SERVERS = Path(__file__).parents[1] / "support/cloud_servers.py"
FLAGS = {"remote": ("--sandbox-host", "other-host")}
WRONG = {
    "e2b": {"E2B_API_KEY": "e2b_00"},
    "daytona": {"DAYTONA_API_KEY": ""},
}
"""A key that the account refuses, and no key."""


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    """Start the servers; return their process and the variables that lead to each."""
    command = [sys.executable, str(SERVERS), str(tmp_path_factory.mktemp("clouds"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as servers:
        yield servers, json.loads(servers.stdout.readline())
        servers.stdin.close()


def bench(cwd, variables, *words):
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(cwd), **variables}
    return subprocess.run(
        [BENCH, *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.timeout(500)
def test_bench_runs_a_task_in_each_cloud_and_leaves_no_sandbox(clouds, tmp_path):
    servers, variables = clouds
    assert bench(tmp_path, {}, "tasks", "init", "task").returncode == 0

    def run(name):
        words = ("run", "task", "-a", "oracle", "--sandbox", name, *FLAGS.get(name, ()))
        return bench(tmp_path, variables[name], *words, "--json")

    with ThreadPoolExecutor() as threads:
        done = dict(zip(variables, threads.map(run, variables), strict=True))
    assert {name: each.returncode for name, each in done.items()} == dict.fromkeys(done, 0), [
        each.stderr for each in done.values()
    ]
    records = {name: json.loads(each.stdout) for name, each in done.items()}
    assert {name: each["reward"] for name, each in records.items()} == dict.fromkeys(done, 1)
    assert [each["sandbox"] for each in records.values()] == list(done)
    servers.stdin.write("\n")
    servers.stdin.flush()
    assert json.loads(servers.stdout.readline()) == dict.fromkeys(done.keys() - {"remote"}, 0)


@pytest.mark.timeout(500)
def test_a_refused_and_a_missing_key_end_a_job_before_it_begins(clouds, tmp_path):
    _, variables = clouds
    assert bench(tmp_path, {}, "tasks", "init", "task").returncode == 0

    def create(name):
        words = ("eval", "create", "-p", "task", "--sandbox", name, "--job-name", name)
        return bench(tmp_path, {**variables[name], **WRONG[name]}, *words)

    with ThreadPoolExecutor() as threads:
        done = dict(zip(WRONG, threads.map(create, WRONG), strict=True))
    for name, each in done.items():
        assert each.returncode == 4, each.stderr
        [error, hint] = each.stderr.splitlines()
        assert error.startswith("error: ")
        assert f"{name.upper()}_API_KEY" in hint
        assert not (tmp_path / "jobs" / name).exists()
