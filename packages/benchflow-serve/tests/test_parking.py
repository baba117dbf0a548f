"""Rollouts that are parked, refused, resumed, or run again after the end of their server."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchflow_serve import RolloutService
from benchflow_serve.attempts import has_network
from benchflow_serve.env_server import ServedEpisodes
from benchflow_serve.problems import ConflictError, RequestRefusedError
from benchflow_serve_client import RolloutRequest
from served_rollouts import TASK, open_service, settings_at, wait_for, wait_for_sandbox


async def _events(service: RolloutService, ident: str) -> list[str]:
    return [event.kind for event in service.board.store.events(ident)]


def test_a_late_refusal_to_park_is_an_event_and_in_the_state(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent")) as service:
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            await wait_for(service, ident, "running")
            await wait_for_sandbox(service)
            switch = service.board.find(ident).switch
            assert switch is not None
            async with asyncio.TaskGroup() as group:
                parking = group.create_task(service.cancel(ident, keep="checkpoint"))
                await switch.wait_save()
                # The wait of the client's request has ended.
                parking.cancel()
            switch.refuse_save("the disk is full")
            status = service.status(ident)
            assert (status.state, status.park_refusal) == ("running", "the disk is full")
            last = service.board.store.events(ident)[-1]
            assert (last.kind, last.reason) == ("park_refused", "the disk is full")
            assert service.board.find(ident).saved.stop == "none"

    asyncio.run(check())


def test_a_refusal_to_park_within_the_wait_is_a_conflict(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent")) as service:
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            await wait_for(service, ident, "running")
            switch = service.board.find(ident).switch
            assert switch is not None

            async def park() -> None:
                with pytest.raises(ConflictError, match="it has forked"):
                    await service.cancel(ident, keep="checkpoint")

            async with asyncio.TaskGroup() as group:
                group.create_task(park())
                await switch.wait_save()
                switch.refuse_save("it has forked")

    asyncio.run(check())


def test_a_repeated_resume_with_one_key_resumes_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            first = (await service.submit(RolloutRequest(task=TASK))).id
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            await wait_for(service, first, "running")
            await service.cancel(ident, keep="checkpoint")
            assert service.resume(ident, key="again").state == "queued"
            assert service.resume(ident, key="again").state == "queued"
            with pytest.raises(ConflictError, match="not parked"):
                service.resume(ident, key="another")
            with pytest.raises(ConflictError, match="another request"):
                service.resume(ident, policy_version="7", key="again")
            assert (await _events(service, ident)).count("resumed") == 1

    asyncio.run(check())


@pytest.mark.parametrize(
    ("choice", "outcome"), [("lost", ("ended", "lost")), ("rerun", ("running", None))]
)
def test_a_rollout_without_a_checkpoint_is_lost_or_runs_again_after_a_kill(
    tmp_path: Path, choice: Any, outcome: tuple[str, str | None]
) -> None:
    settings = settings_at(tmp_path, "hanging_agent", on_restart=choice, slots=1)
    killed = tmp_path / "killed"

    async def begin() -> str:
        async with open_service(settings) as service:
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            await wait_for(service, ident, "running")
            await wait_for_sandbox(service)
            # The files at this moment are those that a kill leaves.
            shutil.copytree(settings.directory, killed)
        return ident

    async def restart(ident: str) -> None:
        async with open_service(settings.model_copy(update={"directory": killed})) as service:
            if choice == "rerun":
                await wait_for(service, ident, "rerun")
                await wait_for_sandbox(service)
            status = service.status(ident)
            assert (status.state, status.outcome) == outcome
            assert status.attempts == (2 if choice == "rerun" else 1)

    ident = asyncio.run(begin())
    asyncio.run(restart(ident))


def test_a_kill_before_the_first_event_of_a_run_loses_nothing(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "hanging_agent")
    killed = tmp_path / "killed"

    async def begin() -> str:
        async with open_service(settings) as service:
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            await wait_for_sandbox(service)
            shutil.copytree(settings.directory, killed)
        return ident

    async def restart(ident: str) -> None:
        quick = settings_at(tmp_path).model_copy(update={"directory": killed})
        async with open_service(quick) as service:
            await wait_for(service, ident, "ended")
            assert (service.status(ident).reward, service.status(ident).attempts) == (0.5, 2)
            # Such a log is also left by a rollout that was cancelled then.
            [log] = service.board.directory_of(service.board.find(ident)).glob("events.jsonl")
            log.write_bytes(b"")
            assert not (await service.result(ident)).samples

    ident = asyncio.run(begin())
    [log] = (killed / "rollouts").glob("*/events.jsonl")
    log.write_bytes(log.read_bytes()[:20])
    asyncio.run(restart(ident))


def test_a_run_of_an_env_client_does_not_outlive_the_connection_to_its_server(
    tmp_path: Path,
) -> None:
    settings = settings_at(tmp_path, "hanging_agent", on_restart="rerun", slots=1)
    killed = tmp_path / "killed"

    async def begin() -> list[str]:
        async with open_service(settings) as service:
            episodes = ServedEpisodes(service)
            sent = [await episodes.submit(RolloutRequest(task=TASK)) for _ in range(2)]
            await wait_for_sandbox(service)
            shutil.copytree(settings.directory, killed)
        return [each.id for each in sent]

    async def restart(sent: list[str]) -> None:
        async with open_service(settings.model_copy(update={"directory": killed})) as service:
            found = [service.status(each) for each in sent]
            assert [(each.outcome, each.attempts) for each in found] == [("lost", 1), ("lost", 0)]
            capacity = await service.capacity()
            assert (capacity.running, capacity.queued, capacity.unacknowledged) == (0, 0, 0)

    asyncio.run(restart(asyncio.run(begin())))


def test_a_task_with_a_network_never_runs_again(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    path = tmp_path / "task/task.toml"
    path.write_text(path.read_text() + '\n[agent]\nnetwork = "public"\n')

    async def check() -> None:
        async with open_service(settings.model_copy(update={"on_restart": "rerun"})) as service:
            task = service.catalogue.find(TASK)
            assert has_network(task, offline=False)
            assert not has_network(task, offline=True)
            with pytest.raises(RequestRefusedError, match="has a network"):
                await service.submit(RolloutRequest(task=TASK, on_restart="rerun"))
            ident = (await service.submit(RolloutRequest(task=TASK))).id
            assert not service.board.find(ident).saved.reruns

    asyncio.run(check())
