"""Requests at a bad moment: races, late refusals, kills between two writes, old events."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_serve import RolloutService
from benchflow_serve.problems import ConflictError, NotFoundError, RequestRefusedError
from benchflow_serve.runner import Attempt, RolloutRunner
from benchflow_serve.store import ServiceStore
from benchflow_serve_client import GroupPlace, GroupRequest, InlineFile, InlineTask, RolloutRequest
from benchflow_store.database.errors import StaleWriterError
from served_rollouts import (
    TASK,
    open_service,
    run_one,
    settings_at,
    wait_for,
    wait_for_sandbox,
)

INLINE = InlineTask(
    id="one",
    files={
        "task.toml": InlineFile(text='name = "inline/one"\n'),
        "instruction.md": InlineFile(text="Do nothing.\n"),
        "tests/test.sh": InlineFile(text="#!/bin/sh\n", executable=True),
        **{f"file-{number}": InlineFile(text="x") for number in range(50)},
    },
)


def rows_of(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "serve/rollouts").iterdir())


def fail_once(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Let the next call of a method of the store find a full disk."""
    real = getattr(ServiceStore, method)

    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(ServiceStore, method, real)
        raise StoreError("the disk is full")

    monkeypatch.setattr(ServiceStore, method, fail)


def test_requests_that_bring_the_same_task_at_once_all_run(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, allow_inline_tasks=True)
        async with open_service(settings) as service:
            async with asyncio.TaskGroup() as group:
                request = RolloutRequest(task=INLINE)
                sent = [group.create_task(service.submit(request)) for _ in range(12)]
            for each in sent:
                await wait_for(service, each.result().id, "ended")
                assert service.status(each.result().id).outcome == "scored"
            assert len(list((tmp_path / "serve/tasks").iterdir())) == 1

    asyncio.run(check())


def test_the_files_of_a_task_are_deleted_with_its_last_result(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, allow_inline_tasks=True, keep_acknowledged_sec=0)
        async with open_service(settings) as service:
            one, other = [await run_one_of(service) for _ in range(2)]
            service.acknowledge(one)
            await service.delete_acknowledged()
            assert len(list((tmp_path / "serve/tasks").iterdir())) == 1
            service.acknowledge(other)
            await service.delete_acknowledged()
            assert not list((tmp_path / "serve/tasks").iterdir())

    async def run_one_of(service: RolloutService) -> str:
        status = await service.submit(RolloutRequest(task=INLINE))
        await wait_for(service, status.id, "ended")
        return status.id

    asyncio.run(check())


def test_a_member_that_is_refused_or_not_recorded_begins_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path)
    path = tmp_path / "task/task.toml"
    path.write_text(path.read_text() + '\n[agent]\nnetwork = "public"\n')
    place = GroupPlace(id="g", size=9, index=0)
    refused = RolloutRequest(task=TASK, group=place, on_restart="rerun")

    async def check() -> None:
        async with open_service(settings) as service:
            with pytest.raises(RequestRefusedError, match="has a network"):
                await service.submit(refused)
            with pytest.raises(NotFoundError):
                service.group("g")
            request = GroupRequest(id="g", size=2, rollout=RolloutRequest(task=TASK))
            fail_once(monkeypatch, "add")
            with pytest.raises(StoreError):
                await service.submit_group(request, key="k")
            await service.submit_group(request, key="k")
            assert (await service.wait_group("g", 30)).is_ended
        async with open_service(settings) as service:
            assert len(service.group("g").members) == 2

    asyncio.run(check())


def test_a_group_ends_although_results_of_members_are_deleted(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, keep_acknowledged_sec=0)
    places = [GroupPlace(id="g", size=2, index=index) for index in range(2)]

    async def first() -> None:
        async with open_service(settings) as service:
            ended = await run_one(service, group=places[0])
            await service.submit(RolloutRequest(task=TASK, group=places[1]))
            service.acknowledge(ended.id)
            await service.delete_acknowledged()
            assert (await service.wait_group("g", 30)).is_ended

    async def second() -> None:
        async with open_service(settings) as service:
            assert service.group("g").is_ended
            [left] = service.group("g").members
            with pytest.raises(ConflictError, match="is taken"):
                await service.submit(RolloutRequest(task=TASK, group=places[0]))
            service.acknowledge(left.id)
            await service.delete_acknowledged()
            with pytest.raises(NotFoundError):
                service.group("g")

    asyncio.run(first())
    asyncio.run(second())


def test_a_deletion_that_was_cut_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path, keep_acknowledged_sec=0)

    async def first() -> str:
        async with open_service(settings) as service:
            ended = await run_one(service)
            service.acknowledge(ended.id)
            fail_once(monkeypatch, "delete")
            with pytest.raises(StoreError):
                await service.delete_acknowledged()
            with pytest.raises(NotFoundError):
                await service.result(ended.id)
            return ended.id

    async def second(ident: str) -> None:
        async with open_service(settings) as service:
            await service.delete_acknowledged()
            with pytest.raises(NotFoundError):
                service.status(ident)

    ident = asyncio.run(first())
    assert rows_of(tmp_path) == []
    asyncio.run(second(ident))


def test_a_second_cancellation_neither_cuts_the_teardown_nor_changes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, began, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    torn_down: list[str] = []

    async def run(runner: RolloutRunner, attempt: Attempt, on_event: object) -> None:
        del runner, on_event
        (tmp_path / "serve/rollouts" / attempt.directory).mkdir()
        runs.set()
        try:
            await asyncio.Event().wait()
        finally:
            began.set()
            await release.wait()
            torn_down.append(attempt.rollout)

    async def check() -> None:
        monkeypatch.setattr(RolloutRunner, "run", run)
        async with open_service(settings_at(tmp_path)) as service:
            status = await service.submit(RolloutRequest(task=TASK))
            await runs.wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(service.cancel(status.id, keep="tree"))
                await began.wait()
                group.create_task(service.cancel(status.id, keep="none"))
                group.create_task(service.cancel(status.id, keep="checkpoint"))
                await asyncio.sleep(0)
                # What a server that is killed now leaves.
                shutil.copytree(tmp_path / "serve", tmp_path / "killed/serve")
                shutil.copytree(tmp_path / "task", tmp_path / "killed/task")
                release.set()
            assert torn_down == [status.id]
            assert service.status(status.id).outcome == "cancelled"
            assert len(rows_of(tmp_path)) == 1
        async with open_service(settings_at(tmp_path / "killed")) as service:
            assert service.status(status.id).outcome == "cancelled"

    asyncio.run(check())


def test_one_process_serves_a_database_by_each_of_its_names(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "hanging_agent", slots=1)
    database = tmp_path / "serve/serve.db"

    async def refuse(name: str) -> None:
        other = settings.model_copy(update={"directory": tmp_path / name})
        with pytest.raises(UsageError, match="another process serves"):
            async with open_service(other):
                pass

    async def check() -> None:
        async with open_service(settings) as first:
            running = await first.submit(RolloutRequest(task=TASK))
            await wait_for_sandbox(first)
            (tmp_path / "link").symlink_to(database.parent)
            (tmp_path / "other").mkdir()
            (tmp_path / "other/serve.db").symlink_to(database)
            for name in ("serve", "link", "other"):
                await refuse(name)
            assert first.status(running.id).state == "running"
            (database.parent / ".lock").unlink()
            async with open_service(settings) as second:
                assert second.status(running.id).outcome == "lost"
                with pytest.raises(StaleWriterError, match="a newer process serves"):
                    await first.submit(RolloutRequest(task=TASK))
                waiting = await second.submit(RolloutRequest(task=TASK))
                await wait_for(second, waiting.id, "running")
                assert len(first.statuses()) == 1

    asyncio.run(check())


@pytest.mark.parametrize("after", [5, 10**14])
def test_a_stream_is_not_resumed_after_an_event_that_it_does_not_have(
    tmp_path: Path, after: int
) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            ended = await run_one(service)
            assert [e.id async for e in service.events(ended.id, 4) if e is not None] == []
            with pytest.raises(ConflictError, match=f"no event {after}: its last one is 4"):
                service.events(ended.id, after)

    asyncio.run(check())
