"""A session with a foreign world: its record, its end, its failures and its restore."""

import asyncio
import math
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    OutsideState,
    RewardError,
    SnapshotError,
    Step,
    WorldCall,
    WorldSnapshots,
)
from benchflow_env_outside import ImageBlock, WorldAnswer, WorldLimits, WorldSession, WorldTool

sys.path.insert(0, str(Path(__file__).parent))
from worlds import CopiedCounter, Counter, JudgedCounter


def session_of(client: Any, *, snapshots: WorldSnapshots = "replay", **limits: Any) -> WorldSession:
    return WorldSession("counter", client, {}, 7, snapshots, WorldLimits(**limits))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def step(number: int) -> Step:
    return Step(id=f"agent-{number}", message="hm", started_at=0, finished_at=1)


def test_each_reward_has_the_step_that_it_came_in() -> None:
    async def main() -> None:
        session = session_of(Counter())
        await session.open()
        session.end_step("agent-1")
        await session.call("add", {})
        await session.call("add", {})
        session.end_step("agent-2")
        await session.call("add", {})
        events = session.reward_events()
        assert [event.value for event in events] == [0.5] * 3
        assert [event.step_id for event in events] == ["agent-2", "agent-2", None]
        assert {event.source for event in events} == {"counter"}

    run(main())


def test_no_call_reaches_a_world_whose_episode_is_over() -> None:
    async def main() -> None:
        client = Counter()
        session = session_of(client)
        await session.open()
        for _ in range(3):
            assert not session.terminal
            await session.call("add", {})
        assert session.terminal
        answer = await session.call("add", {})
        assert answer.failed
        assert "over" in answer.text
        assert client.count == 3
        assert len(session.reward_events()) == 3

    run(main())


def test_calls_at_one_time_reach_the_world_one_after_another() -> None:
    async def main() -> None:
        client = Counter()
        session = session_of(client)
        await session.open()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(session.call("add", {})) for _ in range(8)]
        assert [call.result().text for call in calls[:3]] == ["1", "2", "3"]
        assert client.count == 3

    run(main())


def test_a_call_of_an_unknown_tool_does_not_reach_the_world() -> None:
    async def main() -> None:
        client = Counter()
        session = session_of(client)
        await session.open()
        assert (await session.call("remove", {})).failed
        assert client.log == ["open"]

    run(main())


def test_a_new_session_reaches_the_state_by_the_same_calls() -> None:
    async def main() -> None:
        parent, child = session_of(Counter()), Counter()
        await parent.open()
        await parent.call("add", {})
        await parent.call("add", {"by": 2})
        parent.end_step("agent-1")
        state = OutsideState.model_validate_json((await parent.capture()).model_dump_json())
        await parent.call("add", {})
        other = session_of(child)
        heard: list[WorldCall] = []
        other.on_call(heard.append)
        await other.restore(state)
        assert (child.count, other.digest, other.prompt) == (1, state.digest, parent.prompt)
        assert [event.step_id for event in other.reward_events()] == ["agent-1"]
        assert heard == []
        await other.call("add", {})
        assert other.digest == parent.digest

    run(main())


def test_a_call_of_a_live_child_waits_until_its_world_is_restored() -> None:
    async def main() -> None:
        parent = session_of(Counter())
        await parent.open()
        await parent.call("add", {})
        child = session_of(Counter())
        async with asyncio.TaskGroup() as group:
            call = group.create_task(child.call("add", {}))
            await asyncio.sleep(0)
            assert not call.done()
            await child.restore(await parent.capture())
        assert call.result().text == "2"
        assert len(child.reward_events()) == 2

    run(main())


def test_a_world_that_does_not_repeat_itself_is_not_restored() -> None:
    class Drifting(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            answer = await super().call(name, arguments)
            return WorldAnswer(f"{id(self)}: {answer.content}", reward=answer.reward)

    async def main() -> None:
        parent = session_of(Drifting())
        await parent.open()
        await parent.call("add", {})
        other = session_of(Drifting())
        with pytest.raises(SnapshotError, match=r"call 1 of 'add' gave '.*: 1', and before"):
            await other.restore(await parent.capture())

    run(main())


def test_a_difference_in_a_reward_alone_is_a_difference() -> None:
    class Generous(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            return WorldAnswer((await super().call(name, arguments)).content, reward=0.6)

    async def main() -> None:
        parent = session_of(Counter())
        await parent.open()
        await parent.call("add", {})
        with pytest.raises(SnapshotError, match="did not repeat itself"):
            await session_of(Generous()).restore(await parent.capture())

    run(main())


@pytest.mark.parametrize("kind", ["live", "state"])
def test_a_world_that_copies_its_state_repeats_no_calls(kind: WorldSnapshots) -> None:
    async def main() -> None:
        parent, child = session_of(CopiedCounter(), snapshots=kind), CopiedCounter()
        await parent.open()
        await parent.call("add", {})
        other = session_of(child, snapshots=kind)
        await other.restore(await parent.capture())
        assert (child.count, child.log) == (1, [])
        assert (await other.call("add", {})).text == "2"
        assert len(other.reward_events()) == 2

    run(main())


def test_a_world_without_snapshots_is_not_captured() -> None:
    async def main() -> None:
        session = session_of(Counter(), snapshots="none")
        await session.open()
        with pytest.raises(SnapshotError, match="no snapshots"):
            await session.capture()

    run(main())


@pytest.mark.parametrize("data", [{}, {"record": 3, "prompt": ""}, {"record": [], "prompt": 1}])
def test_a_malformed_state_is_refused(data: dict[str, Any]) -> None:
    state = OutsideState(kind="replay", digest=f"sha256:{'0' * 64}", data=data)
    with pytest.raises(SnapshotError, match="malformed"):
        run(session_of(Counter()).restore(state))


def test_a_state_with_another_digest_is_refused() -> None:
    async def main() -> None:
        parent = session_of(Counter())
        await parent.open()
        state = (await parent.capture()).model_copy(update={"digest": f"sha256:{'0' * 64}"})
        with pytest.raises(SnapshotError, match="another digest"):
            await session_of(Counter()).restore(state)

    run(main())


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, True, "1", 10**400])
def test_a_reward_that_is_not_a_finite_number_cannot_be_counted(reward: Any) -> None:
    class Odd(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            await super().call(name, arguments)
            return WorldAnswer("odd", reward=reward)

    async def main() -> None:
        session = session_of(Odd())
        await session.open()
        await session.call("add", {})
        with pytest.raises(RewardError, match="not a finite number"):
            session.reward_events()

    run(main())


@pytest.mark.parametrize("failure", [ValueError("boom"), ConnectionError("gone"), None])
def test_a_world_that_fails_in_a_call_has_no_rewards(failure: Exception | None) -> None:
    class Failing(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            await super().call(name, arguments)
            if self.count < 2:
                return WorldAnswer("fine", reward=1)
            if failure is not None:
                raise failure
            return "not an answer"  # type: ignore[return-value]

    async def main() -> None:
        client = Failing()
        session = session_of(client)
        await session.open()
        await session.call("add", {})
        answer = await session.call("add", {})
        assert answer.failed
        assert "environment failed" in answer.text
        await session.call("add", {})
        assert client.count == 2
        with pytest.raises(EnvironmentError_):
            session.reward_events()
        with pytest.raises(SnapshotError, match="failed"):
            await session.capture()
        await session.aclose()

    run(main())


def test_a_world_that_hangs_is_cancelled_at_its_limit() -> None:
    class Hanging(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            del name, arguments
            return await asyncio.get_running_loop().create_future()

    async def main() -> None:
        session = session_of(Hanging(), call_sec=0.05)
        await session.open()
        assert (await session.call("add", {})).failed
        with pytest.raises(EnvironmentError_, match=r"longer than 0\.05 s"):
            session.reward_events()

    run(main())


def test_the_final_reward_is_asked_for_once() -> None:
    async def main() -> None:
        client = JudgedCounter()
        session = session_of(client)
        await session.open()
        await session.call("add", {})
        await session.finish([step(1), step(2)])
        await session.finish([step(1)])
        assert client.log.count("finish") == 1
        events = session.reward_events()
        assert [(event.value, event.tag) for event in events] == [
            (0.5, None),
            (2.0, None),
            (1.0, "calls"),
        ]
        assert [event.granularity for event in events] == ["step", "terminal", "terminal"]
        assert (await session.call("add", {})).failed

    run(main())


def test_the_number_of_calls_is_limited() -> None:
    async def main() -> None:
        client = Counter()
        session = session_of(client, calls=2)
        await session.open()
        texts = [(await session.call("add", {})).text for _ in range(3)]
        assert texts[:2] == ["1", "2"]
        assert "limit of 2" in texts[2]
        assert client.count == 2

    run(main())


def test_large_answers_are_cut() -> None:
    image = ImageBlock("aGk=", "image/png")

    class Large(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            del name, arguments
            bad = ImageBlock("aGk=", "text/html")
            return WorldAnswer(["x" * 50, image, bad, "y" * 100, "z", "\ud800"])

    async def main() -> None:
        session = session_of(Large(), result_chars=100)
        await session.open()
        answer = await session.call("add", {})
        assert answer.blocks == (
            "x" * 50,
            image,
            "[an image was left out]",
            "y" * 50 + "\n[50 characters were cut]",
        )

    run(main())


@pytest.mark.parametrize(
    "tools",
    [
        [WorldTool("a b")],
        [WorldTool("")],
        [WorldTool("x" * 65)],
        [WorldTool("a"), WorldTool("a")],
        [WorldTool(f"t{number}") for number in range(129)],
        [WorldTool("a", input_schema={"x": {1, 2}})],
        [WorldTool("a", input_schema={"x": "y" * 70000})],
    ],
)
def test_tools_that_no_agent_could_use_are_refused(tools: list[WorldTool]) -> None:
    class Odd(Counter):
        async def tools(self) -> list[WorldTool]:
            return tools

    with pytest.raises(EnvironmentError_):
        run(session_of(Odd()).open())


def test_a_session_is_closed_once_and_also_after_a_failed_opening() -> None:
    class Broken(Counter):
        async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
            await super().open(task, seed)
            raise ConnectionError("no server")

    async def main() -> None:
        client = Broken()
        session = session_of(client)
        with pytest.raises(EnvironmentError_, match="no server"):
            await session.open()
        await session.aclose()
        await session.aclose()
        assert client.log == ["open", "close"]

    run(main())


def test_no_call_reaches_the_world_while_it_is_idle() -> None:
    async def main() -> None:
        client = Counter()
        session = session_of(client)
        await session.open()
        async with asyncio.TaskGroup() as group, session.while_idle():
            call = group.create_task(session.call("add", {}))
            await asyncio.sleep(0)
            before = await session.capture()
            assert (client.count, before.digest) == (0, session.digest)
        assert call.result().text == "1"

    run(main())
