"""A host that lacks something gives only rewards of 1 and typed errors, and the job is resumed.

The agent is the oracle: each solution is right, so any other reward than 1 is a lie.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import benchflow_contracts
import pytest
from benchflow_contracts import BenchFlowError
from benchflow_sandbox_local import launcher
from faulted_host import BENCH, Ended, FaultedHost, LimitedGroup, Place, fill
from own_engine import OwnEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STORE = Path("/var/lib/benchflow")
REFUSED = (0, 1, 4)
"""Exit codes of a job: all scored, something without a score, and nothing could be started."""
DAY = 86_400

_CLOCK = """
import os, time
_ahead = int(os.environ.get("CLOCK_AHEAD", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _ahead
time.time_ns = lambda: _time_ns() + _ahead * 10**9
"""


@pytest.fixture
def host() -> Generator[FaultedHost]:
    with closing(FaultedHost()) as made:
        subprocess.run([BENCH, "tasks", "init", "task"], cwd=made.home, check=True)
        yield made


def create(
    host: FaultedHost,
    sandbox: str,
    n: int,
    cwd: Path | None = None,
    at_once: int = 2,
    *,
    stops: bool = False,
) -> Any:
    words = ["--tasks-dir", host.home / "task", "--agent", "oracle", "--sandbox", sandbox]
    words += ["--jobs-dir", host.home / "jobs", "--job-name", "job", "--repeats", n]
    words += ["--concurrency", at_once, "--retries", 0]
    return host.start("eval", "create", *words, cwd=cwd, stops=stops)


def check_under_fault(host: FaultedHost, ended: Ended, n: int, *, spared: bool = False) -> None:
    """Expect that the fault had an effect, and that each record says the truth.

    A temporary directory that is gone may be `spared`: a download makes the directories above
    it anew.
    """
    assert "Traceback" not in ended.output, ended.output
    assert ended.code in REFUSED, ended.output
    scored = [one for one in host.records() if one["reward"] is not None]
    assert {one["reward"] for one in scored} <= {1.0}, host.records()
    unscored = [record for record in host.records() if record["reward"] is None]
    failed = [record for record in unscored if record["status"] != "cancelled"]
    # A fault that ends the job cuts short what else runs, but another record has its error.
    assert failed or not unscored, unscored
    assert ended.code or failed == unscored
    for record in failed:
        check_error(record)
    assert spared or ended.code, "the fault changed nothing"
    assert ended.code != 4 or "hint:" in ended.output
    assert ended.code or len(scored) == n


def check_error(record: dict[str, Any]) -> None:
    error = record["error"]
    assert record["status"] in {"failed", "ungraded"}
    assert (error["caused_by"], record["cause"]["by"]) == ("host", "host"), record
    assert error["boundary"] != "internal"
    # A provider may have error classes of its own.
    room = benchflow_contracts if hasattr(benchflow_contracts, error["type"]) else launcher
    assert issubclass(getattr(room, error["type"]), BenchFlowError)
    assert error["hint"]
    assert error["retryable"] or error["type"] == "StoreError"


def check_resumed(host: FaultedHost, sandbox: str, n: int) -> None:
    ended = host.end(create(host, sandbox, n, at_once=4))
    assert ended.code == 0, ended.output
    summary = json.loads((host.seen(host.home / "jobs") / "job/summary.json").read_bytes())
    assert (summary["scored"], summary["mean_reward"]) == (n, 1.0)


def run_with(
    host: FaultedHost, place: Place, sandbox: str, n: int, *, early: bool, spared: bool = False
) -> None:
    place.prepare()
    cwd = place.path if early and place.how != "gone" else None
    if early:
        place.take()
    runner = create(host, sandbox, n, cwd, stops=not early)
    if not early:
        host.strike(runner, place.take)
    check_under_fault(host, host.end(runner), n, spared=spared)
    place.give_back()
    check_resumed(host, sandbox, n)


CHECKOUT = Path(__file__).parents[2]
"""What a runner needs may lie in a directory that is about to be covered."""

GONE = ("tmp", "gone")
LOCAL = [
    *(("tmp", how) for how in ("full", "inodes", "read-only", "gone")),
    *(("jobs", how) for how in ("full", "inodes", "read-only", "gone")),
    *(("store", how) for how in ("full", "inodes", "read-only")),
]


@pytest.mark.parametrize(("name", "how"), LOCAL)
def test_a_directory_that_is_taken_away_in_the_middle_costs_no_truth(
    host: FaultedHost, name: str, how: str
) -> None:
    run_with(host, place_of(host, name, how), "local", 6, early=False, spared=(name, how) == GONE)


@pytest.mark.parametrize(
    ("name", "how"),
    [("tmp", "full"), ("jobs", "full"), ("jobs", "inodes")]
    + [("store", how) for how in ("full", "inodes", "read-only")],
)
def test_a_directory_that_is_missing_from_the_start_costs_no_truth(
    host: FaultedHost, name: str, how: str
) -> None:
    run_with(host, place_of(host, name, how), "local", 4, early=True)


@pytest.mark.parametrize(("name", "how"), [("tmp", "full"), ("tmp", "gone"), ("jobs", "full")])
def test_a_directory_that_is_taken_away_beside_docker_costs_no_truth(
    host: FaultedHost, name: str, how: str
) -> None:
    run_with(host, place_of(host, name, how), "docker", 4, early=False, spared=(name, how) == GONE)


def place_of(host: FaultedHost, name: str, how: str) -> Place:
    place = Place(host, STORE if name == "store" else host.home / name, how)
    if name == "tmp" and how != "gone":
        # Python tries these, too, and the working directory.
        place.prepare()
        code = host.home / "code"
        code.mkdir()
        host.inside("mount", "--bind", CHECKOUT, code)
        for usual in ("/tmp", "/var/tmp"):
            host.inside("mount", "--bind", place.path, usual)
            if CHECKOUT.is_relative_to(usual):
                host.inside("mkdir", "-p", CHECKOUT)
                host.inside("mount", "--bind", code, CHECKOUT)
        return Covered(host, place.path, how)
    return place


class Covered(Place):
    """A place that is mounted already."""

    def prepare(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("sandbox", "n"), [("local", 32), ("gvisor", 12), ("docker", 12)])
def test_descriptors_that_run_out_cost_no_truth(
    host: FaultedHost, request: pytest.FixtureRequest, sandbox: str, n: int
) -> None:
    if sandbox == "gvisor":
        request.getfixturevalue("runsc")
        host.variables = {"BENCHFLOW_LIVE_ENGINE": "runsc"}
    provider = "local" if sandbox == "gvisor" else sandbox
    limit = 64 if sandbox == "docker" else 128
    # Below a job, because a job is refused before it runs out.
    words = ["prlimit", f"--nofile={limit}:{limit}", sys.executable, "-c", AT_ONCE]
    done = subprocess.run(
        [*words, provider, str(n), str(host.home / "jobs/job")],
        cwd=host.home,
        env={**os.environ, **host.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    records = host.records()
    assert len(records) == n
    for record in records:
        if record["reward"] is None:
            check_error(record)
    assert {record["reward"] for record in records} <= {1.0, None}
    assert any(record["reward"] is None for record in records), "the fault changed nothing"
    check_resumed(host, provider, n)


AT_ONCE = """
import asyncio, sys
from pathlib import Path
from benchflow_contracts import BenchFlowError
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_store import record_from_error, write_result

async def main(sandbox, n, directory):
    config = RunConfig.model_validate({"sandbox": {"provider": sandbox}}).with_agent("oracle")
    task = runnable_task("task", config.adapter_options())

    async def run(home):
        try:
            await run_in(provider, task, config, directory=home)
        except BenchFlowError as error:
            record = record_from_error(home.name, task, config.ran_with, error)
            later.append((home, record))

    later = []
    async with open_provider(config) as provider:
        await asyncio.gather(*(run(Path(directory) / f"r{i}") for i in range(int(n))))
    for home, record in later:
        write_result(home, record)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("limit", [8, 24])
def test_processes_that_run_out_above_the_sandboxes_cost_no_truth(
    host: FaultedHost, limit: int
) -> None:
    n = 16
    with closing(LimitedGroup("pids", str(limit))) as group:
        host.prefix = group.prefix
        check_under_fault(host, host.end(create(host, "local", n, at_once=n)), n)
    host.prefix = ()
    check_resumed(host, "local", n)


def test_threads_that_the_runner_cannot_make_cost_no_truth(host: FaultedHost) -> None:
    with closing(LimitedGroup("pids", "3")) as group:
        host.prefix = group.prefix
        check_under_fault(host, host.end(create(host, "docker", 4, at_once=4)), 4)
    host.prefix = ()
    check_resumed(host, "docker", 4)


def test_a_runner_that_is_killed_for_want_of_memory_is_resumed(host: FaultedHost) -> None:
    with closing(LimitedGroup("memory", str(45 << 20))) as group:
        host.prefix = group.prefix
        ended = host.end(create(host, "local", 6))
    assert ended.code == -9, ended.output
    assert {record["reward"] for record in host.records()} <= {1.0}
    host.prefix = ()
    check_resumed(host, "local", 6)


@pytest.mark.parametrize("ahead", [-DAY, DAY])
def test_a_clock_that_is_set_hides_no_graded_rollout(host: FaultedHost, ahead: int) -> None:
    (host.home / "sitecustomize.py").write_text(_CLOCK)
    with closing(LimitedGroup("pids", "8")) as group:
        host.prefix = group.prefix
        check_under_fault(host, host.end(create(host, "local", 4)), 4)
    host.prefix = ()
    host.variables = {"PYTHONPATH": str(host.home), "CLOCK_AHEAD": str(ahead)}
    check_resumed(host, "local", 4)
    before = len(host.records())
    host.variables = {}
    check_resumed(host, "local", 4)
    assert len(host.records()) == before, "a graded rollout was run again"


@pytest.fixture(scope="module")
def small_engine(image: str) -> Generator[OwnEngine]:
    """An engine whose disk is a small file system of its own."""
    with closing(OwnEngine()) as engine:
        data = engine.home / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(data)], check=True)
        engine.start()
        engine.take(image)
        yield engine


@pytest.mark.parametrize("early", [True, False], ids=["before", "in-the-middle"])
def test_a_full_disk_of_the_engine_costs_no_truth(
    host: FaultedHost, small_engine: OwnEngine, *, early: bool
) -> None:
    host.variables = {"DOCKER_HOST": small_engine.host}
    filler = small_engine.home / "data/filler"
    if early:
        fill(filler)
    runner = create(host, "docker", 4, stops=not early)
    if not early:
        host.strike(runner, lambda: fill(filler))
    check_under_fault(host, host.end(runner), 4)
    filler.unlink()
    check_resumed(host, "docker", 4)
