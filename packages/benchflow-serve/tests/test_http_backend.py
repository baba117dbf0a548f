"""The backend `http` against real server processes: conformance, kills, stops and refusals."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Completion, Dispatch, UsageError
from benchflow_kernel import Registry
from benchflow_serve_client.backend import HttpBackend, NoServerError
from benchflow_testing import (
    BackendCheck,
    BackendSubject,
    backend_checks,
    resizable_backend_checks,
    run_check,
)
from dispatch_server import BROKEN, FAKE, RECORDING, TOKEN, DispatchServer
from ray_job import WaitingJob

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_SERVE_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatchServer]:
    server = DispatchServer(tmp_path_factory.mktemp("serve")).start()
    yield server
    server.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[DispatchServer]]:
    servers = [DispatchServer(tmp_path / f"serve{number}") for number in range(2)]
    for each in servers:
        each.start()
    yield servers
    for each in servers:
        each.kill()


@pytest.mark.parametrize("check", [*backend_checks(), *resizable_backend_checks()], ids=str)
def test_the_http_backend_keeps_the_promises(
    check: BackendCheck, server: DispatchServer, tmp_path: Path
) -> None:
    subject = BackendSubject(
        lambda capacity: HttpBackend(FAKE, capacity, servers=[server.url]), tmp_path
    )
    asyncio.run(run_check(check, subject)).raise_if_failed()


async def _run_with(
    job: WaitingJob, backend: HttpBackend, disturb: Callable[[], Awaitable[None]]
) -> list[Any]:
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(disturb())
        finish = await job.run(backend, 8)
    assert finish.status == "completed"
    return job.check()


def test_a_killed_server_loses_and_doubles_nothing_and_joins_again(
    servers: list[DispatchServer], tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 24)
    slots: list[int] = []

    async def kill() -> None:
        running = await job.until_running(8)
        assert set(running.values()) == {each.pid for each in servers}
        servers[1].kill()
        await job.until(lambda: slots[-1], lambda number: number == 4)
        await asyncio.to_thread(servers[1].start)
        await job.until(lambda: slots[-1], lambda number: number == 8)
        job.allow()

    backend = HttpBackend(
        RECORDING,
        servers=[each.url for each in servers],
        lease_sec=2,
        on_capacity=lambda capacity: slots.append(capacity["slots"]),
    )
    attempts = asyncio.run(_run_with(job, backend, kill))
    lost = [each for each in attempts if each.status == "lost"]
    assert len(lost) == 4
    assert len(attempts) == 24 + 4
    assert not [each for each in attempts if each.duplicate]


def test_a_server_that_was_stopped_makes_no_second_completion(
    servers: list[DispatchServer], tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 12)

    async def stop() -> None:
        running = await job.until_running(8)
        given = [name for name, pid in running.items() if pid == servers[1].pid]
        servers[1].send(signal.SIGSTOP)
        job.allow()  # The stopped server would score its attempts as soon as it continues.
        others = set(range(12))
        await job.until(job.attempts, lambda found: _scored(found) >= others - {11})
        servers[1].send(signal.SIGCONT)
        assert len(given) == 4

    backend = HttpBackend(RECORDING, servers=[each.url for each in servers], lease_sec=3)
    attempts = asyncio.run(_run_with(job, backend, stop))
    assert not [each for each in attempts if each.duplicate]
    assert len([each for each in attempts if each.status == "lost"]) == 4
    assert len(attempts) == 12 + 4


def _scored(attempts: list[Any]) -> set[int]:
    return {each.index for each in attempts if each.status == "scored"}


_DRIVER = f"""
import asyncio, sys
from pathlib import Path
from benchflow_serve_client.backend import HttpBackend
from ray_job import WaitingJob

backend = HttpBackend({RECORDING!r}, servers=[sys.argv[2]], lease_sec=1)
asyncio.run(WaitingJob(Path(sys.argv[1]), 1).run(backend, 1))
"""


def test_a_driver_that_is_gone_leaves_nothing_running(
    server: DispatchServer, tmp_path: Path
) -> None:
    job = WaitingJob(tmp_path, 1)
    command = [sys.executable, "-c", _DRIVER, str(tmp_path), server.url]
    # The directory of test support is on the path of pytest alone.
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(command, env={**os.environ, **paths})

    async def scenario() -> None:
        await job.until_running(1)
        driver.kill()
        await asyncio.to_thread(driver.wait)
        await job.until((tmp_path / "r0-1.cancelled").exists, bool)
        # The slots are free again.
        async with started(FAKE, [server.url]) as backend:
            assert backend.capacity() == {"slots": 4}

    asyncio.run(scenario())


@asynccontextmanager
async def started(executor: str, urls: list[str], **options: Any) -> Any:
    backend = HttpBackend(executor, servers=urls, **options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def test_a_job_waits_for_the_slots_of_another_one(server: DispatchServer) -> None:
    async def scenario() -> None:
        async with started(FAKE, [server.url]):
            with pytest.raises(NoServerError, match="no server answered"):
                await HttpBackend(FAKE, servers=[server.url], start_sec=0.5).start()
        async with started(FAKE, [server.url]) as backend:
            assert backend.capacity() == {"slots": 4}

    asyncio.run(scenario())
    assert NoServerError.stops_job


@pytest.mark.parametrize(
    ("executor", "reason"),
    [
        ("os:system", "'os:system' is not the executor of a job"),
        (BROKEN, "RuntimeError: the host has no engine"),
        ("benchflow_jobs.dispatch_executor:open_executor", "TypeError"),
    ],
)
def test_an_executor_that_cannot_run_is_refused_at_the_start(
    server: DispatchServer, executor: str, reason: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match=reason):
            await HttpBackend(executor, servers=[server.url]).start()

    asyncio.run(scenario())


def test_a_wrong_token_is_refused_at_the_start(
    server: DispatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_SERVE_TOKEN", "another-token-canary")

    async def scenario() -> None:
        with pytest.raises(UsageError, match="no valid bearer token") as caught:
            await HttpBackend(FAKE, servers=[server.url]).start()
        assert "canary" not in str(caught.value)

    asyncio.run(scenario())


def test_an_attempt_that_is_too_large_is_unscored_and_the_others_run(
    server: DispatchServer, tmp_path: Path
) -> None:
    def dispatch(index: int, size: int) -> Dispatch:
        payload = {"do": "score", "text": "x" * size}
        return Dispatch(
            job="j",
            index=index,
            slot=f"s{index}",
            attempt=1,
            epoch=1,
            rollout=f"r{index}",
            payload=payload,
        )

    async def scenario() -> dict[int, Completion]:
        async with started(FAKE, [server.url]) as backend:
            for index, size in enumerate([10, 17 << 20, 10]):
                await backend.submit(dispatch(index, size))
            completions = backend.completions()
            found = [await anext(completions) for _ in range(3)]
            return {each.index: each for each in found}

    found = asyncio.run(scenario())
    assert [found[index].status for index in range(3)] == ["scored", "unscored", "scored"]
    assert found[1].error is not None
    assert found[1].error.boundary == "usage"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "has no servers"),
        ({"servers": "http://h:1"}, "not a list"),
        ({"servers": ["h:1"]}, "is not http"),
        ({"servers": ["http://h:1", "http://h:1/"]}, "named twice"),
        ({"servers": ["http://h:1"], "lease_sec": 0}, "not a positive number"),
        ({"servers": ["http://h:1"], "lease_sec": 4000}, "not between"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        HttpBackend(FAKE, **options)


def test_the_backend_is_found_by_its_name() -> None:
    assert Registry().resolve("benchflow.backends", "http") is HttpBackend
