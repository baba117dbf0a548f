"""Sessions in memory: calls, limits, the end, and the record."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.flags import run_config
from benchflow_store import StoredRollout
from benchflow_tool_sessions import (
    SessionEndedError,
    SessionLimits,
    SessionStartError,
    ToolSession,
    open_session,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_parts import config, task_at


def test_a_session_is_a_recorded_rollout_with_one_step_for_each_call(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(tmp_path)
        async with open_session(
            task, config(sandbox="local"), jobs_dir=tmp_path / "jobs"
        ) as session:
            assert "hello, world" in session.prompt
            names = [tool.name for tool in await session.tools()]
            assert names == ["bash", "read_file", "write_file", "submit"]
            assert (await session.call("bash", {"command": "echo one"})).text.strip() == "one"
            assert (await session.call("unknown")).is_error
            result = await session.call("submit", {"message": "done"})
            assert result.finished
            outcome = await session.outcome()
        assert (outcome.reward, outcome.unscored, outcome.ended_early) == (0.5, None, None)
        stored = StoredRollout(tmp_path / "jobs" / session.id)
        assert stored.record is not None
        assert stored.record.agent == "tool-session"
        steps = [node.step for node in stored.tree.nodes if node.step is not None]
        assert [step.tool_calls[0].name for step in steps[:2]] == ["bash", "unknown"]
        assert [step.observations[0].status for step in steps[:2]] == ["completed", "failed"]
        assert steps[0].prompt == session.prompt
        assert (steps[2].message, steps[2].stop_reason) == ("done", "end_turn")

    asyncio.run(check())


async def call_for_ever(session: ToolSession) -> None:
    """Make calls until a call fails."""
    while True:
        await session.call("bash", {"command": "true"})


def test_a_call_after_the_end_is_refused_and_changes_no_record(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config()) as session:
            await session.submit()
            for _ in range(2):
                with pytest.raises(SessionEndedError):
                    await session.call("bash", {"command": "true"})
                with pytest.raises(SessionEndedError):
                    await session.submit()
            assert session.is_ended
            assert (await session.outcome()).reward == 0.5

    asyncio.run(check())


def test_the_last_allowed_call_ends_the_session_and_the_work_is_graded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_at(tmp_path, "[agent]", "max_tokens = 9", 'other_limits = ["working_limit = 60"]')

    async def check() -> None:
        limits = SessionLimits(calls=2)
        async with open_session(task, config(), limits=limits) as session:
            # The limits on a model that only the caller sees are named.
            [warning] = [record.getMessage() for record in caplog.records]
            assert "max_tokens = 9, working_limit = 60" in warning
            first = await session.call("bash", {"command": "true"})
            second = await session.call("bash", {"command": "true"})
            assert (first.finished, second.finished) == (False, True)
            outcome = await session.outcome()
            assert (outcome.reward, outcome.truncated) == (0.5, True)
            assert "2 calls" in (outcome.ended_early or "")

    asyncio.run(check())


def test_an_idle_session_ends_and_is_graded(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config(idle_sec=0.05)) as session:
            outcome = await session.outcome()
            assert (outcome.reward, outcome.truncated) == (0.5, True)
            with pytest.raises(SessionEndedError, match="no call came"):
                await session.call("bash", {"command": "true"})

    asyncio.run(check())


def test_the_time_of_a_turn_ends_a_session_that_is_not_idle(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(tmp_path, "[agent]", "timeout_sec = 0.2")
        async with open_session(task, config()) as session:
            with pytest.raises(SessionEndedError, match=r"more than 0\.2 s"):
                await call_for_ever(session)
            assert (await session.outcome()).reward == 0.5

    asyncio.run(check())


def test_the_total_time_closes_a_session_without_a_verdict(tmp_path: Path) -> None:
    async def check() -> None:
        limits = SessionLimits(total_sec=0.3)
        async with open_session(task_at(tmp_path), config(), limits=limits) as session:
            outcome = await session.outcome()
            assert outcome.reward is None
            assert "0.3 s" in (outcome.unscored or "")
            assert outcome.result is None

    asyncio.run(check())


def test_a_closed_session_has_no_reward_and_its_record_is_cancelled(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config(), jobs_dir=tmp_path) as session:
            await session.call("bash", {"command": "true"})
            await session.close()
            await session.close()
            outcome = await session.outcome()
            assert (outcome.reward, outcome.unscored) == (None, "the session was closed")
        record = StoredRollout(tmp_path / session.id).record
        assert record is not None
        assert record.status == "cancelled"

    asyncio.run(check())


def test_calls_that_race_run_one_after_the_other(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(
            task_at(tmp_path), config(sandbox="local"), jobs_dir=tmp_path
        ) as session:
            async with asyncio.TaskGroup() as group:
                calls = [
                    group.create_task(session.call("bash", {"command": f"echo {i}"}))
                    for i in range(8)
                ]
            assert [call.result().text.strip() for call in calls] == [str(i) for i in range(8)]
            await session.submit()
        tree = StoredRollout(tmp_path / session.id).tree
        assert max(len(node.children) for node in tree.nodes) == 1

    asyncio.run(check())


def test_a_cancelled_call_leaves_the_session_usable(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config(sandbox="local")) as session:
            async with asyncio.TaskGroup() as group:
                call = group.create_task(session.call("bash", {"command": "true"}))
                await asyncio.sleep(0)
                call.cancel()
            assert (await session.call("bash", {"command": "echo on"})).text.strip() == "on"
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == 0.5

    asyncio.run(check())


def test_each_prompt_of_the_task_is_a_turn_of_the_session(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(
            tmp_path, "[agent]", "max_turns = 2", "[user]", 'mode = "auto"', 'nudges = ["Again."]'
        )
        async with open_session(task, config()) as session:
            result = await session.call("submit")
            assert (result.text, result.finished) == ("Again.", False)
            assert session.prompt == "Again."
            await session.call("bash", {"command": "true"})
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == 0.5

    asyncio.run(check())


def test_a_wrong_submit_is_an_error_and_the_session_continues(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config()) as session:
            assert (await session.call("submit", {"message": 1})).is_error
            assert (await session.call("submit", {"text": "x"})).is_error
            assert (await session.call("submit", {"message": "\ud800"})).is_error
            assert not session.is_ended

    asyncio.run(check())


def test_a_session_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(tmp_path, "[environment]", 'network = "public"')
        with pytest.raises(SessionStartError, match=r"did not start: .+"):
            async with open_session(task, config(), jobs_dir=tmp_path / "jobs"):
                pass

    asyncio.run(check())


def test_a_fork_policy_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        forking = run_config(config(), branch="group", branch_n=2)
        with pytest.raises(UsageError, match="fork"):
            async with open_session(task_at(tmp_path), forking):
                pass

    asyncio.run(check())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["bash", "read_file", "write_file", "\ud800", "x" * 300])
            | st.text(max_size=5).filter(lambda name: name != "submit"),
            st.dictionaries(
                st.sampled_from(["command", "path", "content", "timeout", "\udfff"]), _JSON
            )
            | _JSON,
        ),
        max_size=6,
    )
)
def test_hostile_calls_are_results_and_the_record_can_be_read(
    calls: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def check() -> None:
        home = tmp_path_factory.mktemp("session")
        async with open_session(task_at(home), config(), jobs_dir=home) as session:
            for name, arguments in calls:
                result = await session.call(name, arguments)
                result.text.encode()
            await session.submit()
        steps = [n.step for n in StoredRollout(home / session.id).tree.nodes if n.step is not None]
        assert len(steps) == len(calls) + 1

    asyncio.run(check())
