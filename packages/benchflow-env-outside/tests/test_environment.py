"""The environment over a client: its doors, its data and its life."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    ProvisionContext,
    SandboxSpec,
    SnapshotError,
    Task,
    TaskConfig,
    TaskError,
    outside_world,
)
from benchflow_env_outside import FILE, OutsideEnvironment, outside_environment, read_task_data
from benchflow_testing.fakes import FakeSandboxProvider

sys.path.insert(0, str(Path(__file__).parent))
from worlds import Counter


def context(sandbox: Any, **fields: Any) -> ProvisionContext:
    return ProvisionContext(sandbox=sandbox, task_id="t", **fields)


async def a_sandbox() -> Any:
    return await FakeSandboxProvider().create(SandboxSpec())


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_the_tools_are_behind_a_door_whose_token_is_new_for_each_world() -> None:
    async def main() -> None:
        worlds = [OutsideEnvironment("counter", Counter, {}) for _ in range(2)]
        tokens: set[str] = set()
        for world in worlds:
            assert outside_world(world) is world
            (declared,), (server,) = world.doors, world.mcp_servers
            (door,) = await world.open_doors()
            assert (door.name, door.port, door.serves) == (declared.name, declared.port, "tools")
            assert server.url == f"http://127.0.0.1:{door.port}/mcp"
            assert server.headers == {}
            tokens.add(door.headers["Authorization"])
            await world.teardown()
        assert len(tokens) == 2

    run(main())


def test_a_world_begins_with_its_prompt_and_ends_with_its_session() -> None:
    async def main() -> None:
        log: list[str] = []
        world = OutsideEnvironment("counter", lambda: Counter(log), {"what": "cats"}, seed=3)
        assert world.prompt is None
        await world.open_doors()
        await world.provision(context(await a_sandbox()))
        assert world.prompt == "Count cats from 3."
        before = await world.query()
        await world.check(before)
        await world.teardown()
        await world.teardown()
        assert log == ["open", "close"]

    run(main())


def test_a_checkpoint_without_the_state_of_the_world_is_refused() -> None:
    async def main() -> None:
        world = OutsideEnvironment("counter", Counter, {})
        await world.open_doors()
        with pytest.raises(SnapshotError, match="outside the sandbox"):
            await world.provision(context(await a_sandbox(), resumed=True))
        await world.teardown()

    run(main())


def test_a_world_that_is_not_open_says_so_and_may_be_torn_down() -> None:
    async def main() -> None:
        world = OutsideEnvironment("counter", Counter, {})
        with pytest.raises(EnvironmentError_, match="not open"):
            await world.query()
        await world.teardown()

    run(main())


def task_with(tmp_path: Path, text: str | None) -> Task:
    if text is not None:
        (tmp_path / "environment").mkdir()
        (tmp_path / FILE).write_text(text)
    config = TaskConfig(name="t")
    return Task(id="t", path=tmp_path, instruction="x", config=config, digest="sha256:0")


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"task": 3}', '{"seed": -1}', '{"x": 1}'])
def test_a_task_without_good_data_is_refused(tmp_path: Path, text: str | None) -> None:
    with pytest.raises(TaskError) as caught:
        outside_environment(task_with(tmp_path, text), "counter", Counter)
    assert caught.value.where == str(tmp_path / FILE)


def test_a_task_without_a_seed_always_gets_the_same_one(tmp_path: Path) -> None:
    task = task_with(tmp_path, '{"task": {"a": null}, "seed": null}')
    data = read_task_data(task)
    assert data.task == {"a": None}
    assert data.seed == read_task_data(task).seed
    (tmp_path / FILE).write_text('{"seed": 4}')
    assert read_task_data(task).seed == 4
