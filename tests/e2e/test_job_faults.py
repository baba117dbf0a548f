"""Whole jobs under faults: nothing is lost, doubled or left, and an oracle never has a 0.

The seeds of random kills are printed. `BENCHFLOW_FAULT_SEED` repeats one.
`BENCHFLOW_FAULT_429_SEC=60` lets the model answer 429 for a minute.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import apsw
import kill_job
import pytest
from benchflow_jobs import orders as order
from benchflow_jobs.control_socket import running_process, send_order
from benchflow_store.database import DATABASE_FILE, read_job_state
from fault_job import BENCH, FaultJob, check_rewards, fault_job, write_tasks
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from watching import sleepers, until

pytestmark = pytest.mark.timeout(240)

# Of this run alone: another one on the machine has sleepers of its own.
MARK = str(2 * 10**9 + os.getpid())
SLOTS = 12
KILLS = 4
DAY = 86_400
ORACLE = ("--agent=oracle", f"--repeats={SLOTS // 2}", "--concurrency=4")
LIMITED_SEC = float(os.environ.get("BENCHFLOW_FAULT_429_SEC") or 3)
"""How long the model answers 429. A whole minute is too long for each run of the tests."""
SOLVED = "#!/bin/sh\necho 'hello, world' > /workspace/greeting.txt\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Generator[FaultJob]:
    """A job without a fault. The solutions of its tasks leave a process behind."""
    home = tmp_path_factory.mktemp("jobs")
    write_tasks(home, f"{SOLVED}sleep {MARK} >/dev/null 2>&1 &\nsleep 0.2\n")
    with fault_job(home, "whole", *ORACLE) as job:
        job.run()
        job.check_complete(SLOTS, {})
        yield job


@pytest.fixture
def faulted(whole: FaultJob, request: pytest.FixtureRequest) -> Generator[FaultJob]:
    """A job with the same plan, which a test disturbs."""
    name = re.sub(r"\W", "", request.node.name)
    with fault_job(whole.home, name, *ORACLE) as job:
        yield job


def test_a_job_that_is_killed_at_random_instants_ends_as_one_without_a_kill(
    faulted: FaultJob, whole: FaultJob
) -> None:
    seed = int(os.environ.get("BENCHFLOW_FAULT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"BENCHFLOW_FAULT_SEED={seed}")
    instants = random.Random(seed)
    kept: dict[int, str] = {}
    for _ in range(KILLS):
        runner = faulted.start()
        time.sleep(instants.uniform(0, whole.seconds * 0.8))  # The fault itself: any instant.
        os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate()
        scored = faulted.scored()
        assert kept.items() <= scored.items()
        kept = scored
    faulted.run()
    faulted.check_complete(SLOTS, kept)
    faulted.check_same_as(whole)
    faulted.check_nothing_left(MARK)


@pytest.mark.slow
@pytest.mark.parametrize("what", [("points", "1"), ("instants", "20")])
def test_jobs_that_are_killed_by_the_command_end_as_one_without_a_kill(what: tuple[str]) -> None:
    """Some of the kills that the command makes by hand: `kill_job.py instants 1000`."""
    command = [sys.executable, kill_job.__file__, *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing was lost, doubled or left" in done.stdout
    assert "not reached" not in done.stdout


CALLS = ("rename,renameat,renameat2", "fsync,fdatasync", "pwrite64", "unlink,unlinkat,rmdir")


@pytest.mark.slow
def test_a_job_that_is_killed_at_system_calls_ends_as_one_without_a_kill(
    faulted: FaultJob, whole: FaultJob, strace: str
) -> None:
    seed = int(os.environ.get("BENCHFLOW_FAULT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"BENCHFLOW_FAULT_SEED={seed}")
    numbers = random.Random(seed)
    kept: dict[int, str] = {}
    for calls in numbers.sample(CALLS, k=len(CALLS)):
        kill = f"inject={calls}:signal=SIGKILL:when={numbers.randrange(1, 40)}"
        words = ("-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", kill)
        faulted.start(strace, *words).communicate(timeout=60)
        scored = faulted.scored()
        assert kept.items() <= scored.items()
        kept = scored
    faulted.run()
    faulted.check_complete(SLOTS, kept)
    faulted.check_same_as(whole)
    faulted.check_nothing_left(MARK)


def test_a_stopped_runner_without_its_lock_does_not_write_beside_the_next_one(
    faulted: FaultJob, whole: FaultJob
) -> None:
    first = faulted.start()
    faulted.until_scored(1)
    stop_between_commits(first, faulted)
    kept = faulted.scored()
    (faulted.directory / ".lock").unlink()
    second = faulted.start()
    until("the second epoch", lambda: epoch(faulted) == 2)
    # A result that the first one did not commit is a score, too, before the second one listens.
    until("its socket", lambda: running_process(faulted.directory) == second.pid)
    until("a score of the second", lambda: len(faulted.scored()) > len(kept))
    send_order(faulted.directory, order.Pause(by="test"))
    os.killpg(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=60)
    assert first.returncode not in {0, -signal.SIGKILL}, said
    assert "a later writer" in said
    # The socket is that of the second runner.
    assert send_order(faulted.directory, order.Resume()).ok
    _, said = second.communicate(timeout=60)
    assert second.returncode == 0, said
    faulted.check_complete(SLOTS, kept)
    assert {each.epoch for each in faulted.attempts() if each.duplicate} <= {1}
    faulted.check_same_as(whole)
    faulted.check_nothing_left(MARK)


def stop_between_commits(runner: subprocess.Popen[str], job: FaultJob) -> None:
    """Stop a runner while it does not hold the lock of the database."""
    while True:
        os.killpg(runner.pid, signal.SIGSTOP)
        database = apsw.Connection(str(job.directory / DATABASE_FILE))
        try:
            database.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            os.killpg(runner.pid, signal.SIGCONT)
        else:
            return
        finally:
            database.close()


def epoch(job: FaultJob) -> int:
    return read_job_state(job.directory / DATABASE_FILE).epoch


def test_a_copy_of_a_job_that_runs_is_refused(faulted: FaultJob) -> None:
    runner = faulted.start()
    faulted.until_scored(1)
    send_order(faulted.directory, order.Pause(by="test"))
    copy = faulted.home / "copies" / faulted.name
    shutil.copytree(faulted.directory, copy, ignore=shutil.ignore_patterns("*.sock"))
    before = epoch(faulted)
    done = subprocess.run(
        [BENCH, "job", "resume", copy],
        cwd=faulted.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in {0, 1}, done.stderr
    assert "is a copy of the job in" in done.stderr
    assert len(list(copy.glob("*__*"))) <= len(list(faulted.directory.glob("*__*")))
    assert epoch(faulted) == before
    send_order(faulted.directory, order.Resume())
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == 0, said
    faulted.check_complete(SLOTS, {})


def test_torn_projections_of_a_job_are_written_again_by_its_resume(
    faulted: FaultJob, whole: FaultJob
) -> None:
    faulted.run()
    trials, metrics = (
        faulted.directory / "facts" / f"{n}.jsonl" for n in ("trials", "metrics_long")
    )
    os.truncate(trials, trials.stat().st_size - 30)
    with metrics.open("ab") as file:
        file.write(bytes(512))
    (faulted.directory / "results.jsonl").write_bytes(b'{"schema_ver')
    (faulted.directory / "summary.json").unlink()
    faulted.run()
    faulted.check_complete(SLOTS, {})
    assert len(faulted.attempts()) == SLOTS
    faulted.check_same_as(whole)


_CLOCK = """
import os, time
_ahead, _flag = int(os.environ["CLOCK_AHEAD"]), os.environ["CLOCK_FLAG"]
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _ahead * os.path.exists(_flag)
time.time_ns = lambda: _time_ns() + _ahead * 10**9 * os.path.exists(_flag)
"""


@pytest.mark.parametrize("ahead", [-DAY, DAY])
def test_a_clock_that_is_set_while_a_job_runs_changes_nothing(
    faulted: FaultJob, whole: FaultJob, tmp_path: Path, ahead: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    flag = tmp_path / "moved"
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    faulted.variables = {
        "PYTHONPATH": path,
        "CLOCK_AHEAD": str(ahead),
        "CLOCK_FLAG": str(flag),
    }
    runner = faulted.start()
    faulted.until_scored(1)
    flag.touch()
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == 0, said
    faulted.check_complete(SLOTS, {})
    assert len(faulted.attempts()) == SLOTS
    assert max(map(moved, faulted.attempts())) > DAY / 2, "the fault changed nothing"
    faulted.check_same_as(whole)
    faulted.variables = {}
    faulted.run()
    assert len(faulted.attempts()) == SLOTS


def moved(attempt: Any) -> float:
    """Return how far the end of an attempt is from the true time."""
    return abs(float(attempt.finished) - time.time())


def test_a_job_that_signals_end_leaves_nothing_and_is_resumable(tmp_path: Path) -> None:
    write_tasks(tmp_path, f"#!/bin/sh\nsleep {MARK}\n")
    with fault_job(tmp_path, "ended", *ORACLE) as job:
        for run, numbers in enumerate(
            [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)], 1
        ):
            runner = job.start()
            until("four rollouts", lambda: len(sleepers(MARK)) == 4)
            assert runner.stderr is not None
            runner.send_signal(numbers[0])
            if len(numbers) > 1:
                # Two signals at one instant are one.
                assert "press Ctrl-C again" in next(runner.stderr)
                runner.send_signal(numbers[1])
            said = runner.stderr.read()
            assert runner.wait(timeout=60) == 130, said
            assert "resume with: " in said
            job.check_nothing_left(MARK)
            assert job.summary()["status"] == "interrupted"
            assert [each.status for each in job.attempts()] == ["cancelled"] * 4 * run
            check_rewards(job.records())


def write_greeting(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="Done.")
    command = "echo 'hello, world' > /workspace/greeting.txt"
    return ModelReply(tools=(ToolUse("shell", {"command": command}),))


def with_model(llm: ScriptedLlm) -> tuple[str, ...]:
    endpoint = (f"--base-url={llm.url}/v1", "--model=scripted", "--upstream=vllm")
    return ("--agent=policy", *endpoint, f"--repeats={SLOTS // 2}", "--concurrency=4")


def test_a_model_that_answers_500_for_ever_pauses_the_job_with_its_cause(tmp_path: Path) -> None:
    write_tasks(tmp_path, SOLVED)
    with ScriptedLlm(lambda _: ModelReply(text="it is broken", status=500)) as llm:
        hurry = ("--retries=0", "--agent-env.BENCHFLOW_POLICY_BACKOFF=0.02")
        with fault_job(tmp_path, "broken", *with_model(llm), *hurry) as job:
            said = job.run(code=1)
            summary = job.summary()
            assert summary["status"] == "paused"
            assert "5 times running" in summary["stopped"]
            assert "500" in summary["stopped"]
            assert "the job is paused" in said
            assert len(job.attempts()) < SLOTS
            assert {each["reward"] for each in job.records()} == {None}


def test_a_model_that_answers_429_for_a_while_costs_no_slot(tmp_path: Path) -> None:
    write_tasks(tmp_path, SOLVED)
    calls: list[float] = []

    def answer(request: ModelRequest) -> ModelReply:
        calls.append(time.monotonic())
        if calls[-1] < calls[0] + LIMITED_SEC:
            return ModelReply(text="too many requests", status=429)
        return write_greeting(request)

    with ScriptedLlm(answer) as llm, fault_job(tmp_path, "limited", *with_model(llm)) as job:
        job.run()
        job.check_complete(SLOTS, {})


@pytest.mark.parametrize("place", ["solution/solve.sh", "tests/test.sh"])
def test_a_hung_program_ends_in_bounded_time_with_its_cause(tmp_path: Path, place: str) -> None:
    write_tasks(tmp_path, SOLVED)
    for task in (tmp_path / "tasks").iterdir():
        with (task / place).open("a") as program:
            program.write(f"trap '' TERM INT HUP\nsleep {MARK}\nsleep {MARK}\n")
        toml = (task / "task.toml").read_text().replace("timeout_sec = 60", "timeout_sec = 2")
        (task / "task.toml").write_text(f"{toml}\n[agent]\ntimeout_sec = 2\n")
    is_agent = place.startswith("solution")
    with fault_job(tmp_path, "hung", "--agent=oracle", "--repeats=2", "--retries=0") as job:
        said = job.run(code=0 if is_agent else 1)
        assert said.count("did not end within 2 s" if is_agent else "verifier_timeout: ") >= 4
        for record in job.records():
            # The work of an agent that was late is graded.
            assert record["reward"] == (1.0 if is_agent else None)
            assert record["error"]["boundary"] == ("agent" if is_agent else "reward")
        for path in job.directory.glob("*/timing.json"):
            assert json.loads(path.read_bytes())["total_sec"] < 2 + 10
        job.check_nothing_left(MARK)


@pytest.mark.parametrize("fault", ["killed", "stopped", "full-disk"])
def test_no_fault_of_a_dashboard_disturbs_the_job_that_it_shows(
    fault: str, faulted: FaultJob, whole: FaultJob, tmp_path: Path
) -> None:
    served = subprocess.Popen(
        [BENCH, "dashboard", "--jobs-dir", faulted.home / "jobs", "--port", "0", "--no-open"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stderr is not None
        url = served.stderr.readline().rsplit(maxsplit=1)[-1].removeprefix("http://").rstrip("/")
        host, port = url.split(":")
        runner = faulted.start()
        with socket.create_connection((host, int(port)), timeout=30) as reader:
            reader.sendall(f"GET /live?on=runs HTTP/1.1\r\nHost: {url}\r\n\r\n".encode())
            assert b"200 OK" in reader.recv(64)
            # This reader reads no more, while the dashboard follows the job.
            faulted.until_scored(1)
            if fault == "full-disk":
                # From here on, each write to a file fails.
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (0, 0))
            else:
                served.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            _, said = runner.communicate(timeout=60)
        if fault == "full-disk":
            runs, problem = f"http://{url}/runs", b"the index is not up to date"
            until("the problem on the page", lambda: problem in urlopen(runs, timeout=30).read())
    finally:
        served.kill()
        served.communicate()
    assert runner.returncode == 0, said
    faulted.check_complete(SLOTS, {})
    faulted.check_same_as(whole)
    assert len(faulted.attempts()) == SLOTS
