"""Two Ray nodes on the loopback interface: conformance, kills, and a start that fails."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import ray_job
from benchflow_contracts import UsageError
from benchflow_jobs_ray import LocalCluster, RayBackend, RayStartError, connection
from benchflow_testing import (
    BackendCheck,
    BackendSubject,
    backend_checks,
    resizable_backend_checks,
    run_check,
)
from ray_job import WaitingJob
from watching import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]
NODE = {"benchflow": 4}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def _start() -> LocalCluster:
    """Start one node and connect. Without Ray, no test of this file says anything."""
    cluster = LocalCluster([NODE])
    try:
        await cluster.start()
        await connection.connect(cluster.address, 60)
    except RayStartError as error:
        await cluster.close()
        pytest.exit(f"no test ran on Ray: {error}", returncode=3)
    return cluster


@pytest.fixture(scope="module")
def cluster(runner: asyncio.Runner) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        # As on real nodes, the workers have to find the executor by themselves.
        patch.setenv("PYTHONPATH", str(Path(ray_job.__file__).parent))
        cluster = runner.run(_start())
        yield cluster
        runner.run(connection.disconnect())
        runner.run(cluster.close())


@pytest.fixture(scope="module")
def two_nodes(cluster: LocalCluster, runner: asyncio.Runner) -> LocalCluster:
    """Start a second node, after the checks that need one node only: each one starts actors."""
    try:
        runner.run(cluster.add_node(NODE))
    except RayStartError as error:
        pytest.exit(f"no second node: {error}", returncode=3)
    return cluster


def backend(cluster: LocalCluster, **options: object) -> RayBackend:
    return RayBackend("ray_job:RecordingExecutor", address=cluster.address, **options)


@pytest.mark.parametrize("check", [*backend_checks(), *resizable_backend_checks()], ids=str)
def test_the_ray_backend_keeps_the_promises(
    check: BackendCheck, cluster: LocalCluster, runner: asyncio.Runner, tmp_path: Path
) -> None:
    subject = BackendSubject(
        lambda capacity: RayBackend(
            "benchflow_testing.fakes:FakeExecutor", capacity, address=cluster.address
        ),
        tmp_path,
    )
    runner.run(run_check(check, subject)).raise_if_failed()


def test_a_killed_actor_loses_and_doubles_nothing(
    two_nodes: LocalCluster, runner: asyncio.Runner, tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 24)

    async def kill() -> None:
        running = await job.until_running(8)
        os.kill(running["r0-1"], signal.SIGKILL)
        job.allow()

    attempts = runner.run(_run_with(job, backend(two_nodes), kill))
    lost = [each for each in attempts if each.status == "lost"]
    assert len(lost) == 4
    assert len(attempts) == 24 + 4
    assert {each.rollout for each in attempts} == set(job.running())


def test_a_killed_node_loses_and_doubles_nothing_and_another_joins(
    two_nodes: LocalCluster, runner: asyncio.Runner, tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 24)
    slots: list[int] = []

    async def kill() -> None:
        await job.until_running(8)
        await two_nodes.kill_node(1)
        await job.until(lambda: slots[-1], lambda number: number == 4)
        await two_nodes.add_node(NODE)
        await job.until(lambda: slots[-1], lambda number: number == 8)
        job.allow()

    ray = backend(two_nodes, on_capacity=lambda capacity: slots.append(capacity["slots"]))
    attempts = runner.run(_run_with(job, ray, kill))
    assert len([each for each in attempts if each.status == "lost"]) == 4
    assert len(attempts) == 24 + 4


def test_an_actor_that_was_stopped_ends_what_was_given_to_others(
    two_nodes: LocalCluster, runner: asyncio.Runner, tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 12)

    def late() -> list[str]:
        return [each.status for each in job.attempts() if each.duplicate]

    async def stop() -> None:
        running = await job.until_running(8)
        stopped = running["r0-1"]
        os.kill(stopped, signal.SIGSTOP)
        given = [int(name[1:].split("-")[0]) for name, pid in running.items() if pid == stopped]
        # The others end, and so do the second attempts at the slots of the stopped actor.
        job.allow(*(index for index in range(11) if index not in given))
        for index in given:
            (tmp_path / f"r{index}-2.go").touch()
        await job.until(job.attempts, lambda found: _scored(found) >= set(range(11)))
        os.kill(stopped, signal.SIGCONT)
        await job.until(late, lambda statuses: len(statuses) >= len(given))
        job.allow()

    attempts = runner.run(_run_with(job, backend(two_nodes, lease_sec=3), stop))
    duplicates = [each for each in attempts if each.duplicate]
    assert {each.attempt for each in duplicates} == {1}
    assert {each.status for each in duplicates} <= {"cancelled", "scored", "lost"}


def _scored(attempts: list) -> set[int]:
    return {each.index for each in attempts if each.status == "scored"}


async def _run_with(
    job: WaitingJob, ray: RayBackend, disturb: Callable[[], Awaitable[None]]
) -> list:
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(disturb())
        finish = await job.run(ray, 8)
    assert finish.status == "completed"
    return job.check()


def test_an_executor_that_no_node_has_is_refused(
    cluster: LocalCluster, runner: asyncio.Runner
) -> None:
    async def start() -> None:
        with pytest.raises(UsageError, match=r"no node can run 'no_such:thing'.*no_such"):
            await RayBackend("no_such:thing", address=cluster.address).start()

    runner.run(start())


def test_a_second_job_waits_for_the_slots_of_a_node(
    cluster: LocalCluster, runner: asyncio.Runner
) -> None:
    async def start() -> None:
        first = backend(cluster)
        await first.start()
        try:
            with pytest.raises(RayStartError, match=r"no node .* had free slots within 2 s"):
                await backend(cluster, start_sec=2).start()
        finally:
            await first.close()

    runner.run(start())


def test_a_start_that_takes_too_long_leaves_nothing(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray's sockets need a short path.
    place = Path(tempfile.mkdtemp())
    monkeypatch.setenv("TMPDIR", str(place))

    async def start() -> int:
        cluster = LocalCluster([NODE], start_sec=3)
        with pytest.raises(RayStartError, match="in 2 attempts: a node did not start within 3 s"):
            await cluster.start()
        assert cluster.session is not None
        return cluster.session

    session = runner.run(start())
    assert _of_session(session) == []
    place.rmdir()


_OWNER = """
import asyncio
from benchflow_jobs_ray import LocalCluster

async def main():
    cluster = LocalCluster([{"benchflow": 1}])
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.start())
        while cluster.session is None:
            await asyncio.sleep(0.01)
        print(cluster.session, flush=True)

asyncio.run(main())
"""


def test_a_driver_that_is_killed_during_the_start_leaves_nothing() -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        session = int(owner.stdout.readline())
        until("a process of Ray", lambda: len(_of_session(session)) > 1)
        owner.kill()
    until("the end of the cluster", lambda: _of_session(session) == [])


def _of_session(session: int) -> list[str]:
    """Return the processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, rest = (entry / "stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            if rest.split()[3] == str(session) and rest.split()[0] != "Z":
                found.append(name)
    return found
