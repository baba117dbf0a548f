"""`bench job` from the terminal: what is wrong in the words is said, with the remedy."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import Dispatch
from benchflow_engine.scaffold import write_task
from benchflow_jobs import JobConfig
from benchflow_jobs.begin import plan_of
from benchflow_jobs.heartbeat import HEARTBEAT_FILE, beating
from benchflow_jobs.hold import held
from benchflow_jobs.planning import write_plan
from benchflow_jobs.runner import open_record
from benchflow_store.database import DATABASE_FILE, JobWriter

JOB = {
    "job": {"name": "nightly"},
    "dataset": {"paths": ["tasks"]},
    "run": {"agent": {"name": "nop"}},
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a job that was planned, and that no process runs."""
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "tasks" / "one")
    directory = tmp_path / "jobs" / "nightly"
    directory.mkdir(parents=True)
    plan = plan_of(JobConfig.model_validate(JOB)).plan
    write_plan(directory, plan)

    async def record() -> None:
        async with JobWriter(directory / DATABASE_FILE, directory.name) as writer:
            await open_record(writer, plan, directory)

    asyncio.run(record())
    return directory


def test_a_job_that_another_process_runs_has_an_exit_code_of_its_own(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text("job.name = 'nightly'\ndataset.paths = ['tasks']\n")
    with held(job):
        for words in ("run job.toml --set run.agent.name='nop'", "resume nightly"):
            assert run(["job", *words.split(), "--json"]) == 75
            error = json.loads(capsys.readouterr().err)
            assert error["exit_code"] == 75
            assert "is being run by another process" in error["error"]
        assert run(["job", "extend", "nightly", "-k", "2"]) == 75


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("status ''", "the name of the job is empty"),
        ("status nope", "'jobs' has no job 'nope'"),
        ("status old", "job 'old' has no record.db yet"),
        ("watch old", "job 'old' has no record.db yet"),
        ("requeue nightly --slot two#*", "no slot matches 'two#*'"),
        ("pause nightly", "no process runs job 'nightly'"),
        ("set nightly", "no limit was given"),
        ("set nightly --concurrency 0", "--concurrency 0: it should be greater"),
        ("set nightly --cost-usd nan", "for --cost-usd. It is not a finite number"),
        ("set nightly --endpoint http://x", "--endpoint 'http://x' is not URL=NUMBER"),
        ("extend nightly", "nothing to add was given"),
        ("extend nightly -k 70000", "--replications 70000: it should be less than"),
        ("extend nightly -k 0", "--replications 0: it should be greater"),
        ("extend nightly --variants nothing.toml", "cannot read 'nothing.toml'"),
        ("extend nightly --variants odd.toml", "it does not consist of [[variants]] alone"),
        ("resume nightly --variant default", "so its pauses have ended"),
        ("watch nightly --interval 0", "--interval 0: it is not greater than 0"),
        ("watch nightly --interval inf", "for --interval. It is not a finite number"),
        ("watch nightly --interval 1e9", "--interval 1e+09: it is not greater than 0, and at most"),
        ("run nothing.toml", "cannot read"),
        ("run odd.toml --set design", "design"),
    ],
)
def test_wrong_words_are_a_usage_error_with_a_hint(
    job: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    (job.parent / "old").mkdir()
    (job.parent / "old" / "job.json").write_text("{}")
    Path("odd.toml").write_text("variants = 3\n")
    assert run(["job", *shlex.split(words), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    error = json.loads(output.err)
    assert says in error["error"]
    assert error["hint"]


def test_the_state_of_a_job_is_shown_without_an_import_of_the_engine(job: Path) -> None:
    code = (
        "import sys; from benchflow.cli.entry import run; code = run(sys.argv[1:])\n"
        "heavy = {'benchflow_engine', 'benchflow_kernel', 'benchflow_contracts.task'}\n"
        "sys.exit(code or heavy & set(sys.modules) or 0)"
    )
    command = [sys.executable, "-c", code, "job", "status", str(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "job nightly" in done.stdout


def test_the_state_of_a_job_whose_process_was_killed_is_not_shown_as_running(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start() -> None:
        async with JobWriter(job / DATABASE_FILE, job.name) as writer:
            await writer.begin()
            await writer.start(
                Dispatch(
                    job=job.name,
                    index=0,
                    slot="one#0",
                    attempt=1,
                    epoch=writer.epoch,
                    rollout="one__1",
                ),
                started=1.0,
            )

    async def beat() -> None:
        async with beating(job, 2, lambda: ({"running": 1}, ("one#0",))):
            file = job / HEARTBEAT_FILE
            last = json.loads(file.read_text())
        file.write_text(json.dumps({**last, "monotonic": last["monotonic"] - 99, "process": 7}))

    asyncio.run(start())
    asyncio.run(beat())
    assert run(["job", "status", "nightly"]) == 0
    state = capsys.readouterr().out
    assert re.search(r"no heartbeat for (99|\d{3}) s: process 7 on \S+ has ended", state)
    assert "job nightly: cut short, no process runs it" in state
    assert "0 of 1 scored, 1 cut short, 0 waiting" in state
    assert " running" not in state
    assert run(["job", "watch", "nightly", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["process"] is None
