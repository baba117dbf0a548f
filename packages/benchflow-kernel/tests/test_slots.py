"""Slots of the machine: shared by processes, given back by the dead."""

import asyncio
import errno
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest
from benchflow_contracts import StoreError
from benchflow_kernel.branch import MachineSlots, fork_limits

HOLDER = """
import asyncio, sys
from pathlib import Path
from benchflow_kernel.branch import MachineSlots

async def main():
    async with MachineSlots(Path(sys.argv[1]), 1).slot():
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


def test_no_more_than_the_slots_are_held_at_once(tmp_path):
    running, most = 0, 0

    async def child(slots):
        nonlocal running, most
        async with slots.slot():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    async def main():
        one, other = MachineSlots(tmp_path, 2), MachineSlots(tmp_path, 2)
        async with asyncio.TaskGroup() as group:
            for index in range(12):
                group.create_task(child(one if index % 2 else other))

    asyncio.run(main())
    assert most <= 2


@pytest.mark.timeout(180)
def test_a_slot_of_another_process_is_waited_for_and_comes_back_when_it_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    async def main():
        async with AsyncExitStack() as stack:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await stack.enter_async_context(MachineSlots(tmp_path, 1).slot())
            holder.kill()
            async with asyncio.timeout(50):
                await stack.enter_async_context(MachineSlots(tmp_path, 1).slot())

    with holder:
        assert holder.stdout.readline() == "held\n"
        asyncio.run(main())
        holder.stdin.close()


def test_a_cancelled_waiter_takes_nothing(tmp_path):
    async def second(slots):
        async with asyncio.timeout(0.01), slots.slot():
            raise AssertionError("there was a second slot")

    async def main():
        slots = MachineSlots(tmp_path, 1)
        async with slots.slot():
            with pytest.raises(TimeoutError):
                await second(slots)
        async with asyncio.timeout(50), slots.slot():
            pass

    asyncio.run(main())


def test_a_directory_that_cannot_be_used_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")

    async def main():
        async with MachineSlots(tmp_path / "file" / "slots", 1).slot():
            raise AssertionError("never")

    with pytest.raises(StoreError) as caught:
        asyncio.run(main())
    assert "XDG_RUNTIME_DIR" in caught.value.hint


def test_the_users_slots_are_as_many_as_the_cpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def main():
        async with MachineSlots.of_this_machine().slot():
            pass

    asyncio.run(main())
    assert [path.name for path in tmp_path.glob("benchflow-*/slots/*")] == ["slot-0"]


def test_a_host_that_has_no_locks_left_is_not_taken_for_a_busy_one(tmp_path, monkeypatch):
    def short(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    async def check():
        with pytest.raises(StoreError, match="No locks"):
            await asyncio.wait_for(MachineSlots(tmp_path, 1).slot().__aenter__(), 5)

    monkeypatch.setattr(fork_limits.fcntl, "lockf", short)
    asyncio.run(check())
