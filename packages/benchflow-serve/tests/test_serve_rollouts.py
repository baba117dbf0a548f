"""Rollouts of a service in one process: order, limits, idempotency, cancel and restart."""

import asyncio
from pathlib import Path

import pytest
from benchflow_serve.problems import (
    ConflictError,
    NotFoundError,
    QueueFullError,
    RequestRefusedError,
)
from benchflow_serve_client import GroupPlace, GroupRequest, InlineFile, InlineTask, RolloutRequest
from served_rollouts import TASK, open_service, run_one, settings_at, wait_for, wait_for_sandbox


def test_a_rollout_is_queued_runs_is_scored_and_ends(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            status = await service.submit(RolloutRequest(task=TASK))
            kinds = [e.kind async for e in service.events(status.id) if e is not None]
            assert kinds == ["queued", "running", "leaf", "ended"]
            ended = service.status(status.id)
            assert (ended.state, ended.outcome, ended.reward) == ("ended", "scored", 0.5)
            [leaf] = ended.leaves
            assert (leaf.reward, leaf.answer) == (0.5, "user")
            result = await service.result(status.id)
            assert [sample["reward"] for sample in result.samples] == [0.5]
            later = [e.id async for e in service.events(status.id, 2) if e is not None]
            assert later == [3, 4]

    asyncio.run(check())


def test_a_greater_priority_starts_first_and_then_the_older_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            first = await service.submit(RolloutRequest(task=TASK))
            await wait_for(service, first.id, "running")
            waiting = [
                (await service.submit(RolloutRequest(task=TASK, priority=priority))).id
                for priority in (0, 5, 0, 5)
            ]
            places = [service.status(each).queue_position for each in waiting]
            assert places == [2, 0, 3, 1]
            await service.cancel(first.id)
            await wait_for(service, waiting[1], "running")
            states = [service.status(each).state for each in waiting]
            assert states == ["queued", "running", "queued", "queued"]

    asyncio.run(check())


def test_a_full_queue_refuses_and_a_group_gets_all_places_or_none(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, "hanging_agent", slots=1, queue=2)
        async with open_service(settings) as service:
            request = RolloutRequest(task=TASK)
            for _ in range(2):
                await service.submit(request)
            with pytest.raises(QueueFullError) as refused:
                await service.submit_group(GroupRequest(size=2, rollout=request))
            assert refused.value.retry_after_sec
            await service.submit(request)
            with pytest.raises(QueueFullError):
                await service.submit(request)
            assert (await service.capacity()).queued == 2

    asyncio.run(check())


def test_one_key_is_one_rollout_however_many_requests_race(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            request = RolloutRequest(task=TASK, seed=1)
            async with asyncio.TaskGroup() as group:
                racing = [group.create_task(service.submit(request, key="k")) for _ in range(20)]
            assert len({task.result().id for task in racing}) == 1
            with pytest.raises(ConflictError, match="another request"):
                await service.submit(RolloutRequest(task=TASK, seed=2), key="k")
            with pytest.raises(ConflictError, match="another request"):
                await service.submit_group(GroupRequest(size=1, rollout=request), key="k")
            assert len(service.statuses()) == 1

    asyncio.run(check())


def test_a_cancelled_rollout_is_torn_down_and_leaves_no_files(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, "hanging_agent")
        async with open_service(settings) as service:
            for files in (0, 1):
                status = await service.submit(RolloutRequest(task=TASK))
                await wait_for_sandbox(service)
                ended = await service.cancel(status.id, keep="tree" if files else "none")
                assert (ended.state, ended.outcome, ended.reward) == ("ended", "cancelled", None)
                assert (await service.capacity()).sandboxes == 0
                assert len(list((settings.directory / "rollouts").iterdir())) == files
                assert not (await service.result(status.id)).samples
            assert service.status(status.id) == await service.cancel(status.id)

    asyncio.run(check())


def test_a_deadline_ends_a_rollout_without_a_score(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent")) as service:
            ended = await run_one(service, deadline_sec=0.2)
            assert (ended.outcome, ended.reward) == ("unscored", None)
            assert ended.error is not None
            assert ended.error.type == "DeadlineError"

    asyncio.run(check())


def test_a_lost_member_of_a_group_is_named_and_not_zero(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=2)) as service:
            request = GroupRequest(id="g", size=2, rollout=RolloutRequest(task=TASK, seed=7))
            group = await service.submit_group(request)
            assert not (await service.wait_group("g", 0.05)).is_ended
            for member in group.members:
                await service.cancel(member.id)
            ended = await service.wait_group("g", 10)
            assert ended.is_ended
            assert set(ended.lost) == {member.id for member in ended.members}
            assert [member.reward for member in ended.members] == [None, None]
            with pytest.raises(ConflictError, match="already"):
                await service.submit_group(request)
            place = GroupPlace(id="g", size=2, index=0)
            with pytest.raises(ConflictError, match="is taken"):
                await service.submit(RolloutRequest(task=TASK, group=place))

    asyncio.run(check())


def test_a_member_that_times_out_is_lost_and_the_group_waits_for_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "third_hangs")) as service:
            rollout = RolloutRequest(task=TASK, deadline_sec=3)
            await service.submit_group(GroupRequest(id="g", size=3, rollout=rollout))
            async with asyncio.timeout(30):
                while sum(m.state == "ended" for m in service.group("g").members) < 2:
                    await service.board.changed.wait()
            assert not service.group("g").is_ended
            ended = await service.wait_group("g", 30)
            assert ended.is_ended
            [lost] = [member for member in ended.members if member.reward is None]
            assert ended.lost == [lost.id]
            assert lost.error is not None
            assert (lost.outcome, lost.error.type) == ("unscored", "DeadlineError")
            assert [m.reward for m in ended.members if m.id != lost.id] == [0.5, 0.5]
            assert not (await service.result(lost.id)).samples

    asyncio.run(check())


def test_an_acknowledged_result_is_deleted_and_the_others_stay(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, keep_acknowledged_sec=0)
        async with open_service(settings) as service:
            kept, gone = await run_one(service), await run_one(service)
            assert service.acknowledge(gone.id).is_acknowledged
            await service.delete_acknowledged()
            assert len(list((settings.directory / "rollouts").iterdir())) == 1
            with pytest.raises(NotFoundError):
                service.status(gone.id)
            assert len((await service.result(kept.id)).samples) == 1

    asyncio.run(check())


def test_a_restart_keeps_results_and_queues_again_what_waited(tmp_path: Path) -> None:
    async def first() -> tuple[str, str]:
        async with open_service(settings_at(tmp_path)) as service:
            ended = await run_one(service)
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            assert service.status(ended.id).model_dump_json() == ended.model_dump_json()
            await service.submit(RolloutRequest(task=TASK))
            waiting = await service.submit(RolloutRequest(task=TASK), key="k")
        return ended.id, waiting.id

    async def second(ended: str, waiting: str) -> None:
        async with open_service(settings_at(tmp_path)) as service:
            assert len((await service.result(ended)).samples) == 1
            await wait_for(service, waiting, "ended")
            assert service.status(waiting).outcome == "scored"
            again = await service.submit(RolloutRequest(task=TASK), key="k")
            assert again.id == waiting
            assert len(service.statuses()) == 3

    asyncio.run(second(*asyncio.run(first())))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "nope"}, "no task"),
        ({"agent": "claude-code"}, "does not allow"),
        ({"branch": {"kind": "nope"}}, "branch"),
        ({"branch": {"kind": "group", "n": 10**9}}, "branch"),
        ({"policy": "p"}, "not registered"),
        ({"task": InlineTask(id="t", files={"task.toml": InlineFile(text="")})}, "inline"),
    ],
)
def test_a_wrong_request_is_refused_and_runs_nothing(
    tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            with pytest.raises(RequestRefusedError, match=words):
                await service.submit(RolloutRequest.model_validate({"task": TASK, **fields}))
            assert service.statuses() == []

    asyncio.run(check())
