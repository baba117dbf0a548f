"""The leaves of a rollout of the service, as an export."""

import asyncio
import json
from pathlib import Path

import pytest
from benchflow_serve.leaf_export import export_leaves
from benchflow_serve.problems import RequestRefusedError
from benchflow_serve_client import GroupPlace, RolloutRequest
from served_rollouts import TASK, open_service, settings_at


def test_the_leaves_of_a_rollout_are_streamed(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            status = await service.submit(RolloutRequest(task=TASK))
            parts = [part async for part in await export_leaves(service, status.id, "messages")]
            (line,) = b"".join(parts).splitlines()
            assert json.loads(line)["reward"] == 0.5
            again = [part async for part in await export_leaves(service, status.id, "messages")]
            assert b"".join(again) == b"".join(parts)
            rows = [part async for part in await export_leaves(service, status.id, "sft")]
            assert json.loads(b"".join(rows))["reward"] == 0.5
            with pytest.raises(RequestRefusedError):
                await export_leaves(service, status.id, "no-such-format")

    asyncio.run(check())


def test_leaves_whose_reward_is_that_of_the_group_are_refused(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, group_reward="Places")
        async with open_service(settings) as service:
            place = GroupPlace(id="g", size=1, index=0)
            status = await service.submit(RolloutRequest(task=TASK, group=place))
            with pytest.raises(RequestRefusedError, match="group is scored"):
                await export_leaves(service, status.id, "messages")

    asyncio.run(check())
