"""Runners and engines that are killed, and jobs that are long: nothing of ours is left."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_ors import OrsClient, OrsSession
from benchflow_adapters_ors.wire import ToolSuccess
from own_engine import OwnEngine
from task_server import task_server
from watching import DEADLINE, sleepers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BENCH = Path(sys.executable).with_name("bench")
DOCKER = ("--sandbox", "docker")
# Of this run alone: another one on the machine has sleepers of its own.
MARK = str(10**9 + os.getpid())
SOLUTION = f'#!/bin/sh\nsleep {MARK}\necho "hello, world" > /workspace/greeting.txt\n'


@pytest.fixture(scope="module")
def shared(image: str) -> Iterator[OwnEngine]:
    # In memory: the removal of an engine's files from a disk takes seconds.
    with closing(OwnEngine(disk_mb=4096)) as made:
        made.start()
        made.take(image)
        yield made


@pytest.fixture
def engine(shared: OwnEngine) -> Iterator[OwnEngine]:
    """The engine of this file: what a failed test left there is gone before the next one."""
    yield shared
    shared.empty()


@pytest.fixture
def runner_of(tmp_path: Path) -> Iterator[Callable[..., Callable[..., subprocess.Popen[str]]]]:
    """Start `bench` on an engine; it is dead at the end of the test."""
    started = []

    def on(engine: OwnEngine) -> Callable[..., subprocess.Popen[str]]:
        def start(*args: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [str(BENCH), *map(str, args)],
                cwd=tmp_path,
                env=engine.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(process)
            return process

        return start

    yield on
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def runner(
    engine: OwnEngine, runner_of: Callable[..., Any]
) -> Callable[..., subprocess.Popen[str]]:
    """Start `bench` on the engine of this file."""
    made: Callable[..., subprocess.Popen[str]] = runner_of(engine)
    return made


def said(process: subprocess.Popen[str], *, code: int = 0) -> str:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == code, out
    return out


def until_in(job: subprocess.Popen[str], what: str, condition: Callable[[], bool]) -> None:
    """Return when `condition` holds; fail with the output of a job that ends before."""

    def holds() -> bool:
        if condition():
            return True
        assert job.poll() is None, f"never saw: {what}\n{job.communicate()[0]}"
        return False

    until(what, holds)


def write_sleeper(path: Path, bench: Callable[..., Any]) -> None:
    bench("tasks", "init", path)
    (path / "solution/solve.sh").write_text(SOLUTION)


def ended(job: subprocess.Popen[str], place: Path) -> tuple[list[Any], list[Any]]:
    """Let what sleeps go on; return the job's results, and its tries without a reward."""
    for pid in sleepers(MARK):
        os.kill(pid, signal.SIGTERM)
    said(job)
    results = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    tries = [json.loads(path.read_text()) for path in place.glob("*/result.json")]
    failed = [each for each in tries if each["reward"] is None]
    assert len(tries) - len(failed) == len(results)
    return results, failed


def test_prune_removes_all_that_a_killed_runner_had_and_nothing_that_looks_like_it(
    image: str,
    engine: OwnEngine,
    runner: Callable[..., Any],
    bench: Callable[..., Any],
    tmp_path: Path,
) -> None:
    foreign = engine.api.create_container(image, ["sleep", "1"])["Id"]
    engine.api.create_volume("foreign")
    before = engine.holds()
    write_sleeper(tmp_path / "sleeper", bench)
    killed = runner("run", "sleeper", "--agent", "oracle", *DOCKER)
    until("the agent's process", lambda: len(sleepers(MARK)) == 1)
    [ours] = engine.api.containers(filters={"label": "benchflow.kind=sandbox"})
    # What somebody makes of a container of ours, and what somebody labels like it.
    taken = engine.api.commit(ours["Id"], "taken", "latest")["Id"]
    lookalikes = [
        engine.api.create_container("taken", ["sleep", "1"], name=f"benchflow-my-{ours['Id'][:9]}"),
        engine.api.create_container(image, ["sleep", "1"], labels=ours["Labels"]),
    ]
    foreigners = [foreign, *(each["Id"] for each in lookalikes)]
    try:
        killed.kill()
        killed.wait(DEADLINE)
        until("the end of its processes", lambda: not sleepers(MARK))
        rollout = ours["Labels"]["benchflow.labels.benchflow.rollout"]
        label = f"benchflow.rollout={rollout}"
        [listed] = json.loads(said(runner("sandbox", "list", "--label", label, "--json", *DOCKER)))
        assert (listed["owner_alive"], listed["overdue"]) == (False, False)
        assert listed["identity"]["task"] == "sleeper"
        said(runner("sandbox", "prune", "--label", "benchflow.rollout=another", *DOCKER))
        assert ours["Id"] in engine.holds()["containers"]
        said(runner("sandbox", "prune", "--label", label, *DOCKER))
        assert engine.holds()["containers"] == sorted(foreigners)
        assert engine.api.inspect_image(taken)
    finally:
        for each in foreigners[1:]:
            engine.api.remove_container(each, v=True)
        engine.api.remove_image("taken")
    assert engine.holds() == before


def test_an_overdue_sandbox_of_a_living_runner_goes_when_the_operator_says_so(
    engine: OwnEngine, runner: Callable[..., Any], bench: Callable[..., Any], tmp_path: Path
) -> None:
    bench("tasks", "init", tmp_path / "any")
    program = tmp_path / "late.py"
    program.write_text(LATE)
    late = subprocess.Popen(
        [sys.executable, program], env=engine.variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert late.stdout is not None
        name = late.stdout.readline().strip()
        [listed] = json.loads(said(runner("sandbox", "list", "--json", *DOCKER)))
        assert (listed["id"], listed["owner_alive"], listed["overdue"]) == (name, True, True)
        assert "delete them with --overdue" in said(runner("sandbox", "prune", *DOCKER))
        assert len(engine.holds()["containers"]) == 1
        assert name in said(runner("sandbox", "prune", "--overdue", *DOCKER))
        assert late.stdout.readline() == "SandboxLostError True\n"
        assert late.wait(DEADLINE) == 0
    finally:
        late.kill()
        late.communicate()


LATE = """
import asyncio
from benchflow_contracts import RolloutIdentity, SandboxError, SandboxSpec
from benchflow_sandbox_docker import DockerProvider

async def main():
    async with DockerProvider() as provider:
        box = await provider.create(SandboxSpec(), identity=RolloutIdentity(deadline=1))
        print(box.id, flush=True)
        try:
            await box.exec("sleep 1000")
        except SandboxError as error:
            print(type(error).__name__, error.retryable, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["ended", "killed", "forsaken"])
def test_rollouts_whose_engine_restarts_run_again_and_count_once(
    how: str,
    engine: OwnEngine,
    runner: Callable[..., Any],
    bench: Callable[..., Any],
    tmp_path: Path,
) -> None:
    before = engine.holds()
    for name in ("one", "two"):
        write_sleeper(tmp_path / "tasks" / name, bench)
    create = ("eval", "create", "--tasks-dir", "tasks", "--agent", "oracle", "--job-name", "job")
    job = runner(*create, "--retries", "3", "--concurrency", "2", *DOCKER)
    until_in(job, "both agents", lambda: len(sleepers(MARK)) == 2)
    first = set(sleepers(MARK))
    if how == "ended":
        engine.end()
    else:
        (engine.kill if how == "killed" else engine.forsake)()
        # Nobody told the containers, and the next engine ends them.
        assert set(sleepers(MARK)) == first
    engine.start()
    until_in(job, "both agents again", lambda: len(set(sleepers(MARK)) - first) == 2)
    results, failed = ended(job, tmp_path / "jobs/job")
    assert [(each["slot"], each["reward"]) for each in results] == [("one#0", 1), ("two#0", 1)]
    assert {each["slot"] for each in failed} == {"one#0", "two#0"}
    for each in failed:
        assert each["error"]["boundary"] == "sandbox", each
        assert each["error"]["retryable"], each
    assert engine.holds() == before


@pytest.mark.parametrize(("isolation", "how"), [("hermetic", "box"), ("twin", "engine")])
def test_a_grading_that_is_killed_from_outside_runs_again_and_counts_once(
    isolation: str,
    how: str,
    engine: OwnEngine,
    runner: Callable[..., Any],
    bench: Callable[..., Any],
    tmp_path: Path,
) -> None:
    before = engine.holds()
    bench("tasks", "init", tmp_path / "tasks/one")
    test = tmp_path / "tasks/one/tests/test.sh"
    test.write_text(test.read_text().replace("reward=0", f"sleep {MARK}\nreward=0"))
    create = ("eval", "create", "--tasks-dir", "tasks", "--agent", "oracle", "--job-name", "job")
    job = runner(*create, "--isolation", isolation, *DOCKER)
    until_in(job, "the tests", lambda: len(sleepers(MARK)) == 1)
    first = sleepers(MARK)
    if how == "box":
        label = "benchflow.labels.benchflow.purpose=grading"
        [grading] = engine.api.containers(filters={"label": label})
        engine.api.kill(grading["Id"])
    else:
        engine.kill()
        engine.start()
    until_in(job, "the tests again", lambda: len(set(sleepers(MARK)) - set(first)) == 1)
    [result], [failed] = ended(job, tmp_path / "jobs/job")
    assert (result["reward"], result["grading"]) == (1, isolation)
    error = failed["error"]
    assert (error["boundary"], error["type"]) == ("reward", "RewardError"), error
    assert error["retryable"], error
    assert engine.holds() == before


MANY = """
import asyncio, gc, json, os, sys, threading, time
from pathlib import Path
from benchflow_jobs import JobOptions, run_job
from benchflow_engine.flags import run_config
from benchflow_contracts.scratch import scratch_root
from benchflow_sandbox_core.owner import current_owner

class Watch:
    def __init__(self):
        self.seen = []

    def planned(self, job, slots, rewards):
        pass

    def limited(self, limits):
        pass

    def attempted(self, slot, completion):
        pass

    def started(self, slot):
        return lambda event: None

    def finished(self, slot, record):
        self.seen.append({"reward": record.reward, **now()})

def now():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }

run = run_config(agent="oracle", sandbox="docker")
watch = Watch()
options = JobOptions(tasks_dir=Path("tasks"), run=run, job_name="job", repeats=int(sys.argv[1]))
# A process takes the lock of an owner once, with a thread that renews the heartbeat, and the lock
# of its temporary directory.
current_owner()
scratch_root()
before = now()
asyncio.run(run_job(options, listener=watch))
# Nobody waits for the idle threads of an engine's pools: on a busy machine they end a little later.
deadline = time.monotonic() + 60
while threading.active_count() > before["threads"] and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps({"before": before, "seen": watch.seen, "after": now()}))
"""


def test_40_rollouts_leave_nothing_and_take_no_more_memory_than_16(
    engine: OwnEngine, bench: Callable[..., Any], tmp_path: Path
) -> None:
    before = engine.holds()
    bench("tasks", "init", tmp_path / "tasks" / "tiny")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", MANY, "40"],
        cwd=tmp_path,
        env={**engine.variables, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=500,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    seen = told["seen"]
    assert [each["reward"] for each in seen] == [1] * 40
    # Others run while one ends, so that what they hold differs: the least of some.
    for what, slack in (("rss", 6 << 20), ("fds", 4)):
        early, late = (min(each[what] for each in part) for part in (seen[12:20], seen[-8:]))
        assert late <= early + slack, (what, early, late)
    # Those of three pools: the engine has two, and the event loop one.
    assert max(each["threads"] for each in seen) <= 8 + 4 + 32 + 1
    assert told["after"]["threads"] == told["before"]["threads"]
    assert told["after"]["fds"] == told["before"]["fds"]
    assert engine.holds() == before
    assert list(scratch.iterdir()) == []


def test_a_kept_fork_of_a_container_is_gone_on_from_by_another_runner(
    engine: OwnEngine, runner: Callable[..., Any], bench: Callable[..., Any], tmp_path: Path
) -> None:
    before = engine.holds()
    bench("tasks", "init", tmp_path / "tiny")
    fork = ("--branch", "group", "--branch-n", "2", "--keep", "forks")
    said(runner("run", "tiny", "--agent", "oracle", *fork, *DOCKER))
    assert engine.holds() == before
    [kept] = bench("checkpoint", "list", "--json")
    assert (kept["fidelity"], kept["level"]) == ("state", "filesystem")
    said(runner("rollout", "branch", kept["rollout"], "--at", kept["node"], "--n", "2"))
    results = [json.loads(path.read_text()) for path in tmp_path.glob("jobs/*/result.json")]
    assert [each["reward"] for each in results] == [1, 1, 1]
    assert engine.holds() == before


STEPS = Path(__file__).parents[2] / "benchmarks/steps/sorted-words"
SPARSE = (
    "#!/bin/sh\ntruncate -s 200G /workspace/big\necho 'hello, world' > /workspace/greeting.txt\n"
)


def test_an_agent_whose_sparse_file_fits_on_no_disk_has_0_and_nobody_else_notices(
    image: str, runner_of: Callable[..., Any], bench: Callable[..., Any], tmp_path: Path
) -> None:
    with closing(OwnEngine(disk_mb=600)) as engine:
        engine.start()
        engine.take(image)
        before, used = engine.holds(), engine.used_mb
        for name in ("honest", "sparse"):
            bench("tasks", "init", tmp_path / "tasks" / name)
        (tmp_path / "tasks/sparse/solution/solve.sh").write_text(SPARSE)
        create = ("eval", "create", "--tasks-dir", "tasks", "--agent", "oracle", "--concurrency=2")
        twin = ("--isolation", "twin", "--job-name", "job")
        results, failed = ended(runner_of(engine)(*create, *twin, *DOCKER), tmp_path / "jobs/job")
        assert failed == []
        rewards = {each["slot"]: each["reward"] for each in results}
        assert rewards == {"honest#0": 1, "sparse#0": 0}
        [path] = (tmp_path / "jobs/job").glob("sparse*/result.json")
        cause = json.loads(path.read_text())["cause"]
        assert (cause["by"], "/workspace/big" in cause["what"]) == ("agent", True)
        # The same in a checkpoint before the second step, when the first has its reward.
        shutil.copytree(STEPS, tmp_path / "stepped")
        first = tmp_path / "stepped/steps/sort/solution/solve.sh"
        first.write_text(first.read_text() + "truncate -s 200G /workspace/big\n")
        fork = ("--branch", "group", "--branch-at", "1", "--branch-n", "2")
        said(runner_of(engine)("run", "stepped", "--agent", "oracle", *fork, *DOCKER))
        [path] = tmp_path.glob("jobs/sorted-words*/result.json")
        result = json.loads(path.read_text())
        assert (result["reward"], result["cause"]["by"]) == (0, "agent")
        assert engine.holds() == before
        assert engine.used_mb - used < 30


def test_sessions_of_a_task_server_are_containers_and_end_with_it(
    engine: OwnEngine, bench: Callable[..., Any], tmp_path: Path
) -> None:
    bench("tasks", "init", tmp_path / "greet")
    words = (f"mine={tmp_path / 'greet'}", "--protocol", "ors", *DOCKER)
    filters = {"label": "benchflow.kind=sandbox"}

    async def play(url: str) -> tuple[ToolSuccess, int]:
        async with OrsClient(url) as client:
            (spec,) = (await client.tasks("mine", "train", 0, 1)).tasks
            assert isinstance(spec, dict)
            async with OrsSession(client, "mine", spec) as solved:
                await solved.call("bash", {"command": "echo hello, world > greeting.txt"})
                # The server ends this session: the client goes away.
                left = OrsSession(client, "mine", spec)
                await left.open()
                await left.prompt()
                running = len(await asyncio.to_thread(engine.api.containers, filters=filters))
                last = await solved.call("submit", {"message": "done"})
        assert isinstance(last, ToolSuccess)
        return last, running

    with task_server(tmp_path, *words, environment=engine.variables) as (shown, server):
        last, running = asyncio.run(play(shown["url"]))
        assert (last.output.reward, running) == (1.0, 2)
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    assert engine.api.containers(all=True, filters=filters) == []
