"""`bench` with the sandbox of each cloud, as a user runs it.

The SDKs run against our servers in another process, and never on a cloud.
"""

import json
import os
import signal
import subprocess
import sys
import time
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
TERMS = """
date = 2026-11-30
source = "a test"
prices = { vcpu_hour = 54, memory_gib_hour = 0, default = { vcpus = 2, memory_mb = 512 } }
"""


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


def running(servers, name):
    """Return the number of sandboxes that a server has."""
    servers.stdin.write("\n")
    servers.stdin.flush()
    return json.loads(servers.stdout.readline())[name]


@pytest.mark.timeout(300)
def test_a_limit_of_the_cost_and_ctrl_c_end_a_job_and_its_sandboxes(clouds, tmp_path):
    servers, variables = clouds
    assert bench(tmp_path, {}, "tasks", "init", "task").returncode == 0
    words = (
        "eval",
        "create",
        "-p",
        "task",
        "-a",
        "oracle",
        "--sandbox",
        "e2b",
        "-k",
        "3",
        "-n",
        "1",
    )
    # A sandbox costs 0.03 US dollars for a second by these terms.
    (tmp_path / "e2b.toml").write_text(TERMS)
    e2b = {**variables["e2b"], "BENCHFLOW_CLOUD_TERMS": str(tmp_path)}
    done = bench(tmp_path, e2b, *words, "--job-name", "cheap", "--max-cost", "0.001")
    assert done.returncode == 1, done.stderr
    assert "CostLimitError" in done.stderr
    shown = json.loads(bench(tmp_path, {}, "eval", "show", "cheap", "--json").stdout)
    assert shown["cost"]["sandbox_usd"] > shown["cost"]["limit_usd"] == 0.001
    assert len(list((tmp_path / "jobs/cheap").glob("*/result.json"))) == 1

    (tmp_path / "task/solution/solve.sh").write_text("#!/bin/sh\nsleep 1000\n")
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(tmp_path), **e2b}
    argv = [BENCH, *words, "--job-name", "long"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as job:
        while not running(servers, "e2b"):
            time.sleep(0.1)
        # The first one lets what runs end, and the second one ends it.
        for _ in range(2):
            job.send_signal(signal.SIGINT)
            assert job.stderr.readline()
        job.stderr.read()
        assert job.wait(timeout=60) == 130
    assert running(servers, "e2b") == 0
