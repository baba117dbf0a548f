"""The group reward of a service: after the last member, with lost members by name."""

import asyncio
from pathlib import Path

import pytest
from benchflow_serve.problems import ConflictError
from benchflow_serve_client import GroupPlace, GroupRequest, RolloutRequest
from served_rollouts import TASK, open_service, settings_at, wait_for


def test_the_members_of_a_group_are_scored_together(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, group_reward="Places")
        async with open_service(settings) as service:
            request = GroupRequest(id="g", size=3, rollout=RolloutRequest(task=TASK))
            await service.submit_group(request)
            group = await service.wait_group("g", 60)
            assert (group.is_ended, group.group_reward, group.not_compared) == (True, "reward", [])
            assert [member.reward for member in group.members] == [1, 2, 3]
            assert [member.leaves[0].reward for member in group.members] == [1, 2, 3]
            results = [await service.result(member.id) for member in group.members]
            assert [row["reward"] for each in results for row in each.samples] == [1, 2, 3]
        # The verdicts are on disk, and the reward is not asked again.
        async with open_service(settings) as service:
            assert [member.reward for member in service.group("g").members] == [1, 2, 3]
            assert service.group("g").is_ended

    asyncio.run(check())


def test_a_group_is_not_scored_before_its_last_member(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, group_reward="Places")
        places = [GroupPlace(id="g", size=2, index=at) for at in range(2)]
        async with open_service(settings) as service:
            first = await service.submit(RolloutRequest(task=TASK, group=places[0]))
            await wait_for(service, first.id, "ended")
            with pytest.raises(ConflictError, match="not scored yet"):
                await service.result(first.id)
            assert not service.group("g").is_ended
            second = await service.submit(RolloutRequest(task=TASK, group=places[1]))
            assert (await service.wait_group("g", 60)).is_ended
            assert (await service.result(first.id)).samples[0]["reward"] == 1
            assert (await service.result(second.id)).samples[0]["reward"] == 2

    asyncio.run(check())


@pytest.mark.parametrize(("reward", "left"), [("Places", 1.0), ("AllPlaces", None)])
def test_a_cancelled_member_is_lost_and_never_0(
    tmp_path: Path, reward: str, left: float | None
) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, group_reward=reward, slots=1)
        places = [GroupPlace(id="g", size=2, index=at) for at in range(2)]
        async with open_service(settings) as service:
            first = await service.submit(RolloutRequest(task=TASK, group=places[0]))
            second = await service.submit(RolloutRequest(task=TASK, group=places[1]))
            await service.cancel(second.id)
            group = await service.wait_group("g", 60)
            assert group.is_ended
            assert (group.lost, group.not_compared) == ([second.id], [second.id])
            assert [member.reward for member in group.members] == [left, None]
            result = await service.result(first.id)
            assert [row["reward"] for row in result.samples] == ([] if left is None else [left])
            assert result.left_out == ({"unscored": 1} if left is None else {})
            assert not (await service.result(second.id)).samples

    asyncio.run(check())
