import asyncio

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec

COUNTER = (
    "i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; done"
)


async def count(sandbox, tmp_path, name):
    await sandbox.download("/tmp/count", tmp_path / name)
    return int((tmp_path / name).read_text())


@pytest.mark.parametrize("prefer_cgroup_v2", [False, True])
def test_nothing_runs_while_it_is_held_and_all_goes_on_after(
    with_provider, tmp_path, prefer_cgroup_v2
):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(COUNTER)
        await sandbox.exec("while [ ! -e /tmp/count ]; do :; done", timeout=10)
        async with sandbox.freeze():
            first = await count(sandbox, tmp_path, "1")
            async with sandbox.freeze():
                await asyncio.sleep(0.2)
            assert await count(sandbox, tmp_path, "2") == first
        script = f"while [ $(cat /tmp/count) -le {first} ]; do :; done"
        assert (await sandbox.exec(script, timeout=10)).ok
        await process.aclose()

    with_provider(check, prefer_cgroup_v2=prefer_cgroup_v2)


def test_an_error_or_a_cancellation_thaws(with_box):
    async def check(sandbox):
        with pytest.raises(ZeroDivisionError):
            async with sandbox.freeze():
                raise ZeroDivisionError
        assert (await sandbox.exec("true", timeout=10)).ok
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), sandbox.freeze():
                await asyncio.sleep(100)
        assert (await sandbox.exec("true", timeout=10)).ok

    with_box(check)


def test_a_command_of_the_holder_is_refused_and_of_another_task_waits(with_box):
    async def check(sandbox):
        async with asyncio.TaskGroup() as group, sandbox.freeze():
            with pytest.raises(SandboxError, match="frozen"):
                await sandbox.exec("true")
            other = group.create_task(sandbox.exec("echo late"))
            await asyncio.sleep(0.1)
            assert not other.done()
        assert other.result().stdout == "late\n"

    with_box(check)


def test_a_frozen_box_can_be_torn_down(with_box):
    async def check(sandbox):
        process = await sandbox.spawn(["sleep", "100"])
        async with sandbox.freeze(), asyncio.timeout(10):
            await sandbox.teardown()
        assert await process.wait() == 137
        await process.aclose()

    with_box(check)
