"""A job whose runner was killed leaves nothing of its earlier epochs once it is reaped."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RolloutIdentity, SandboxProvider, SandboxRecord, SandboxSpec
from benchflow_engine.config import RunConfig
from benchflow_engine.leftovers import LeftoverReport, reap_leftovers
from benchflow_engine.planes import open_provider
from watching import sleepers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Of this run alone: another one on the machine has sleepers of its own.
MARK = str(10**9 + os.getpid())
SCOPE = f"job-{MARK}"
RUNNER = """
import asyncio, sys
from pathlib import Path
from benchflow_contracts import RolloutIdentity
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task

async def main(sandbox, epoch, home, scope):
    config = RunConfig.model_validate({"sandbox": {"provider": sandbox}}).with_agent("oracle")
    task = runnable_task("task", config.adapter_options())
    identity = RolloutIdentity(scope=scope, job_dir=home, epoch=epoch, slot="s", attempt=1)
    async with open_provider(config) as provider:
        await run_in(provider, task, config, directory=Path(home) / epoch, identity=identity)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["local", "gvisor", "docker"])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "gvisor":
        request.getfixturevalue("runsc")
        monkeypatch.setenv("BENCHFLOW_LIVE_ENGINE", "runsc")
        return "local"
    if request.param == "docker":
        request.getfixturevalue("image")
    return str(request.param)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: Callable[..., Any]) -> Path:
    """A task whose grading never ends, and a temporary directory of this test alone."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    bench("tasks", "init", "task")
    (tmp_path / "task/tests/test.sh").write_text(f"#!/bin/sh\nsleep {MARK}\n")
    return tmp_path


@pytest.fixture
def start(place: Path) -> Any:
    started: list[subprocess.Popen[bytes]] = []

    def begin(sandbox: str, epoch: str, home: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", RUNNER, sandbox, epoch, str(place / home), SCOPE]
        started.append(subprocess.Popen(words, cwd=place))
        until("its grading", lambda: len(gradings(place)) == len(started))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def gradings(place: Path) -> set[Path]:
    return set((place / "tmp").glob("bf-scratch-*/grading-*"))


def processes_of(sandboxes: Iterable[SandboxRecord]) -> list[str]:
    """Return the processes in the control groups of sandboxes; gVisor's are not ours to name."""
    found = list[str]()
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            text = path.read_text()
            found += [text for each in sandboxes if f"benchflow-{each.id}" in text]
    return found


@asynccontextmanager
async def opened(sandbox: str) -> AsyncIterator[SandboxProvider]:
    config = RunConfig.model_validate({"sandbox": {"provider": sandbox}})
    async with open_provider(config) as provider:
        yield provider


def reap(sandbox: str, home: Path) -> tuple[LeftoverReport, list[Any]]:
    """Reap as epoch 2 does, beside a sandbox of it; return the sandboxes of the job after that."""

    async def run() -> tuple[LeftoverReport, list[Any]]:
        identity = RolloutIdentity(scope=SCOPE, job_dir=str(home), epoch="2")
        async with opened(sandbox) as provider:
            ours = await provider.create(SandboxSpec(), identity=identity)
            report = await reap_leftovers(provider, SCOPE, "2", job_dir=str(home))
            assert (await ours.exec(["true"])).ok
            return report, [r async for r in provider.sandboxes(scope=SCOPE) if r.id != ours.id]

    return asyncio.run(run())


def test_the_sandboxes_and_directories_of_a_killed_grading_are_reaped(
    sandbox: str, place: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    killed, living = start(sandbox, "1", "a/job"), start(sandbox, "1", "b/job")
    before = gradings(place)
    killed.kill()
    killed.wait()
    report, rest = reap(sandbox, place / "a/job")
    assert report.errors == ()
    assert report.sandboxes
    assert processes_of(report.sandboxes) == []
    assert {record.identity.job_dir for record in report.sandboxes} == {str(place / "a/job")}
    assert len(before & set(report.directories)) == 1
    # The other job has the same name, and its runner lives.
    assert gradings(place) == before - set(report.directories)
    assert {(r.owner_alive, r.identity.job_dir) for r in rest} == {(True, str(place / "b/job"))}
    assert reap(sandbox, place / "a/job")[0].sandboxes == ()
    living.kill()
    living.wait()
    assert reap(sandbox, place / "a/job")[0].sandboxes == ()
    report, rest = reap(sandbox, place / "b/job")
    assert (bool(report.sandboxes), rest, processes_of(report.sandboxes)) == (True, [], [])
    assert gradings(place) == set()
    until("the end of its processes", lambda: not sleepers(MARK))


def test_prune_deletes_the_directories_of_a_killed_grading(
    place: Path, start: Callable[..., subprocess.Popen[bytes]], bench: Callable[..., Any]
) -> None:
    killed = start("local", "1", "job")
    [grading] = gradings(place)
    assert str(grading) not in bench("sandbox", "prune", "--json")["directories"]
    killed.kill()
    killed.wait()
    until("the end of its processes", lambda: not sleepers(MARK))
    assert str(grading) in bench("sandbox", "prune", "--dry-run", "--json")["directories"]
    assert grading.exists()
    assert str(grading) in bench("sandbox", "prune", "--scope", SCOPE, "--json")["directories"]
    assert not grading.exists()
