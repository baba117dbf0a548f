"""Forks of sessions: children, their verdicts, and the tree in the record."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.config import EnvironmentConfig
from benchflow_engine.rollout import RunResult, run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_kernel.errors import FidelityError
from benchflow_store import StoredRollout
from benchflow_testing.fakes import FAKE_WITHOUT_LIVE, FakeOutsideWorld, FakeSandboxProvider
from benchflow_tool_sessions import (
    ForkConflictError,
    ForkRefusedError,
    ForkReplies,
    SessionEndedError,
    SessionLimitError,
    SessionLimits,
    SessionManager,
    ToolSession,
    fork_fault,
    open_session,
    read_fork,
)
from session_parts import config, task_at

FORKS = SessionLimits(sessions=4)
NO_COPIES = {"snapshot_levels": frozenset[str](), "snapshot_consistency": None}


async def echo(session: ToolSession, command: str) -> str:
    """Run a command in a session; return its output."""
    result = await session.call("bash", {"command": command})
    assert not result.is_error, result.text
    return result.text.strip()


def test_each_child_of_a_fork_has_the_state_of_its_parent_and_its_own_end(tmp_path: Path) -> None:
    async def check() -> None:
        local = config(sandbox="local")
        async with open_session(
            task_at(tmp_path), local, limits=FORKS, jobs_dir=tmp_path
        ) as session:
            await echo(session, "echo shared > a.txt")
            first, second = await session.fork(2)
            with pytest.raises(SessionEndedError, match="forked"):
                await session.call("bash", {"command": "true"})
            assert await echo(first, "cat a.txt; echo first > a.txt; cat a.txt") == "shared\nfirst"
            assert await echo(second, "cat a.txt") == "shared"
            third, fourth = await second.fork(2)
            assert await echo(third, "echo 3 > a.txt; cat a.txt") == "3"
            outcome = await first.submit("one")
            assert outcome is not None
            assert (outcome.reward, outcome.unscored, outcome.result) == (0.5, None, None)
            assert await echo(fourth, "cat a.txt") == "shared"
            for each in (third, fourth):
                await each.submit()
            assert (await second.outcome()).reward == 0.5
            whole = await session.outcome()
            assert (whole.reward, whole.ended_early) == (0.5, None)
            assert (await third.outcome()).result is whole.result
        tree = StoredRollout(tmp_path / session.id).tree
        assert (tree.status, len(tree.leaves)) == ("completed", 3)
        assert [leaf.reward for leaf in tree.leaves] == [0.5] * 3
        forks = [node for node in tree.nodes if node.branch is not None]
        records = [node.branch for node in forks if node.branch is not None]
        assert [(record.policy, record.children) for record in records] == [("caller", 2)] * 2
        calls = [s.tool_calls[0].id for s in tree.leaves[1].steps if s.tool_calls]
        assert calls == sorted(set(calls), key=calls.index)

    asyncio.run(check())


def test_a_fork_in_a_sandbox_without_live_snapshots_is_by_files(tmp_path: Path) -> None:
    async def check() -> None:
        provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
        async with open_session(
            task_at(tmp_path), config(), provider=provider, limits=FORKS
        ) as session:
            await session.call("bash", {"command": "true"})
            children = await session.fork(3)
            assert [child.calls for child in children] == [1] * 3
            for child in children:
                await child.submit()
            whole = await session.outcome()
        assert whole.result is not None
        [fork] = [n for n in whole.result.tree.nodes if n.branch is not None]
        assert fork.branch is not None
        assert (fork.branch.fidelity, fork.branch.children) == ("state", 3)

    asyncio.run(check())


def test_a_closed_child_has_no_reward_and_its_sibling_is_graded(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(
            task_at(tmp_path), config(), limits=FORKS, jobs_dir=tmp_path
        ) as session:
            first, second = await session.fork(2)
            await first.close()
            await first.close()
            outcome = await first.outcome()
            assert outcome.reward is None
            assert "closed" in (outcome.unscored or "")
            assert (await second.call("bash", {"command": "true"})).finished is False
            await second.submit()
            assert (await session.outcome()).reward == 0.5
        tree = StoredRollout(tmp_path / session.id).tree
        assert [leaf.reward for leaf in tree.leaves] == [None, 0.5]
        assert tree.status == "completed"

    asyncio.run(check())


def test_a_forked_session_that_is_closed_ends_its_children(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_session(task_at(tmp_path), config(), limits=FORKS) as session:
            children = await session.fork(2)
        for child in children:
            assert (await child.outcome()).reward is None
            with pytest.raises(SessionEndedError):
                await child.call("bash", {"command": "true"})

    asyncio.run(check())


def test_forks_are_limited_and_a_refused_one_leaves_the_session_usable(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(tmp_path)
        async with open_session(task, config()) as session:
            with pytest.raises(UsageError, match="may not be forked"):
                await session.fork(2)
        async with open_session(task, config(), limits=FORKS) as session:
            with pytest.raises(UsageError, match="not a fork"):
                await session.fork(1)
            with pytest.raises(SessionLimitError, match="5 sessions"):
                await session.fork(5)
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == 0.5
            with pytest.raises(SessionEndedError):
                await session.fork(2)

    asyncio.run(check())


def test_a_manager_finds_the_children_of_a_fork_by_their_ids(tmp_path: Path) -> None:
    async def check() -> None:
        task = runnable_task(task_at(tmp_path))
        async with SessionManager.running(config(), limits=FORKS, most=3) as manager:
            session = await manager.open(task)
            first, second = await manager.fork(session.id, 2)
            assert set(manager.sessions) == {first.id, second.id}
            with pytest.raises(SessionLimitError):
                await manager.fork(first.id, 3)
            await manager.close(first.id)
            outcome = await manager.find(second.id).submit()
            assert outcome is not None
            assert outcome.reward == 0.5

    asyncio.run(check())


class Outside(FakeOutsideWorld):
    """A world without tools. A sandbox in memory cannot run a program that calls them."""

    mcp_servers = ()


def outside(_task: object, **_: object) -> Callable[[], FakeOutsideWorld]:
    """Return a world outside the sandbox whose state nobody can copy."""
    return partial(Outside, snapshots="none")


@pytest.mark.parametrize("part", ["sandbox", "world"])
def test_a_part_that_cannot_be_copied_refuses_a_fork_with_its_reason(
    tmp_path: Path, part: str
) -> None:
    async def check() -> None:
        lacking = NO_COPIES if part == "sandbox" else {"doors": "tunnel"}
        provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE.model_copy(update=lacking))
        world = EnvironmentConfig(import_path=f"{__name__}:outside")
        chosen = config() if part == "sandbox" else config(environment=world)
        async with open_session(
            task_at(tmp_path), chosen, provider=provider, limits=FORKS
        ) as session:
            with pytest.raises(ForkRefusedError, match=part) as refused:
                await session.fork(2)
            assert part in (refused.value.hint or "")
            assert fork_fault(refused.value)[0] == 409
            assert fork_fault(refused.value)[1]["error"]["type"] == "ForkRefusedError"
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == 0.5

    asyncio.run(check())


def test_a_lack_that_shows_after_the_start_ends_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[object] = []

    async def failing(*args: Any, **options: Any) -> RunResult:
        runs.append(await run_in(*args, **options))
        raise FidelityError("the world was lost")

    monkeypatch.setattr("benchflow_tool_sessions.session.run_in", failing)

    async def check() -> None:
        async with open_session(task_at(tmp_path), config(), limits=FORKS) as session:
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.unscored == "the world was lost"

    asyncio.run(check())
    assert len(runs) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"n": 1}', b'{"n": true}', b'{"n": 1e9}', b"[" * 9**6]
)
def test_a_malformed_request_to_fork_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError):
        read_fork(body)


def test_a_repeated_request_with_a_key_gets_the_reply_of_the_first_one() -> None:
    async def check() -> None:
        replies, forks, go = ForkReplies(most=2), list[str](), asyncio.Event()

        async def fork() -> list[str]:
            forks.append(f"child-{len(forks)}")
            await go.wait()
            return forks[-1:]

        async with asyncio.TaskGroup() as requests:
            first = requests.create_task(replies.reply("key", "session", 2, fork))
            await asyncio.sleep(0)
            # The connection of the first request is cut: its fork continues, and is not repeated.
            first.cancel()
            again = requests.create_task(replies.reply("key", "session", 2, fork))
            await asyncio.sleep(0)
            go.set()
        assert again.result() == ["child-0"]
        assert await replies.reply("key", "session", 2, fork) == ["child-0"]
        for session, n in (("other", 2), ("session", 3)):
            with pytest.raises(ForkConflictError) as conflict:
                await replies.reply("key", session, n, fork)
            assert fork_fault(conflict.value)[0] == 409
        with pytest.raises(UsageError, match="characters"):
            await replies.reply("", "session", 2, fork)
        for name in ("b", "c"):
            await replies.reply(name, name, 2, fork)
        assert await replies.reply("key", "session", 2, fork) == ["child-3"]
        assert await replies.reply(None, "session", 2, fork) == ["child-4"]

    asyncio.run(check())


def test_a_fork_that_failed_is_tried_again_with_its_key() -> None:
    async def check() -> None:
        replies, tries = ForkReplies(), list[int]()

        async def fork() -> list[str]:
            tries.append(1)
            await asyncio.sleep(0)
            if len(tries) == 1:
                raise ForkRefusedError("not now")
            return ["child"]

        async def ask() -> str:
            try:
                return str(await replies.reply("key", "session", 2, fork))
            except ForkRefusedError as error:
                return str(error)

        async with asyncio.TaskGroup() as requests:
            first, second = (requests.create_task(ask()) for _ in range(2))
        assert [first.result(), second.result(), await ask()] == ["not now", *["['child']"] * 2]
        assert len(tries) == 2

    asyncio.run(check())
