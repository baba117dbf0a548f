"""Many sessions of one server: limits, ids, the reaper and the end."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.task_formats import runnable_task
from benchflow_testing.fakes import FakeSandboxProvider
from benchflow_tool_sessions import (
    BlockingSessions,
    NoSessionError,
    SessionEndedError,
    SessionLimitError,
    SessionManager,
)
from session_parts import config, task_at


def test_a_manager_limits_its_sessions_and_finds_them_by_id(tmp_path: Path) -> None:
    async def check() -> None:
        task = runnable_task(task_at(tmp_path))
        provider = FakeSandboxProvider()
        async with SessionManager.running(config(), provider=provider, most=2) as manager:
            async with asyncio.TaskGroup() as group:
                opening = [group.create_task(manager.open(task)) for _ in range(2)]
            first, second = [each.result() for each in opening]
            assert first.id != second.id
            with pytest.raises(SessionLimitError):
                await manager.open(task)
            assert manager.find(second.id) is second
            await manager.close(first.id)
            await manager.close(first.id)
            with pytest.raises(NoSessionError):
                manager.find(first.id)
            third = await manager.open(task, slot="caller-1")
            [record] = [r async for r in provider.sandboxes() if r.identity.rollout == third.id]
            assert record.identity.slot == "caller-1"
        assert [record async for record in provider.sandboxes()] == []
        with pytest.raises(SessionEndedError):
            await second.call("bash", {"command": "true"})

    asyncio.run(check())


def test_an_abandoned_session_is_closed_and_its_sandbox_deleted(tmp_path: Path) -> None:
    async def check() -> None:
        task = runnable_task(task_at(tmp_path))
        provider = FakeSandboxProvider()
        async with SessionManager.running(config(), provider=provider, idle_sec=0.2) as manager:
            session = await manager.open(task)
            outcome = await session.outcome()
            assert outcome.reward is None
            assert "no call came" in (outcome.unscored or "")
            assert manager.sessions == {}
            assert [record async for record in provider.sandboxes()] == []

    asyncio.run(check())


def test_a_program_without_an_event_loop_makes_calls(tmp_path: Path) -> None:
    task = runnable_task(task_at(tmp_path))
    with BlockingSessions(config()) as sessions:
        first, second = sessions.open(task), sessions.open(task)
        assert [tool.name for tool in first.tools()][-1] == "submit"
        assert not first.call("write_file", {"path": "/"}).finished
        outcome = first.submit("done")
        assert outcome == first.outcome()
        assert outcome is not None
        assert outcome.reward == 0.5
        first.close()
    with pytest.raises(UsageError, match="closed"):
        second.call("bash", {"command": "true"})
    second.close()


def test_a_provider_that_cannot_be_opened_fails_at_once() -> None:
    with pytest.raises(UsageError, match="absent"):
        BlockingSessions(config(sandbox="absent"))
