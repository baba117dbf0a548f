import asyncio
import errno
import os
import signal
import struct

import pytest


def test_death_by_a_signal_is_128_plus_its_number(box):
    status, _ = asyncio.run(box.run("/bin/sh", "-c", "kill -KILL $$"))
    assert status == 128 + signal.SIGKILL


def test_a_status_is_collected_once(box, expect_failure):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", "exit 5")
        assert await box.client.wait(pid) == 5
        with expect_failure(errno.ESRCH, "wait"):
            await box.client.wait(pid)
        stdout.close()

    asyncio.run(main())


@pytest.mark.parametrize("pid", [0, 1, 2, 30_000, 2**31, 2**32 - 2])
def test_a_process_that_was_never_spawned_is_unknown(box, expect_failure, pid):
    with expect_failure(errno.ESRCH, "wait"):
        asyncio.run(box.client.wait(pid))


def test_a_status_waits_for_a_late_caller(box):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", "exit 6")
        assert await asyncio.to_thread(stdout.read) == b""
        await box.all_reaped()
        assert await box.client.wait(pid) == 6
        stdout.close()

    asyncio.run(main())


def test_a_cancelled_wait_loses_no_status(box):
    async def main():
        pid, stdout = await box.start("sleep", "1000")
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(box.client.wait(pid)) for _ in range(5)]
            await asyncio.sleep(0)  # let each of them send its request
            await box.client.ping()
            for wait in waits:
                wait.cancel()
        await box.client.ping()
        assert len(box.open_fds()) == 1
        await box.client.kill(pid, signal.SIGTERM)
        assert await box.client.wait(pid) == 128 + signal.SIGTERM
        stdout.close()

    asyncio.run(main())


def test_a_status_that_its_reader_did_not_confirm_is_kept(box):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", "exit 9")
        with box.connect() as raw:
            raw.sendall(struct.pack("=III", 3, 4, pid))
            assert struct.unpack("=IIII", await asyncio.to_thread(raw.recv, 64)) == (0, 0, 9, 0)
        assert await box.client.wait(pid) == 9
        stdout.close()

    asyncio.run(main())


def test_all_simultaneous_waiters_get_the_status(box):
    async def main():
        pid, stdout = await box.start("sleep", "1000")
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(box.client.wait(pid)) for _ in range(8)]
            await asyncio.sleep(0)  # let each of them send its request
            await box.client.ping()
            await box.client.kill(pid, signal.SIGKILL)
        assert {wait.result() for wait in waits} == {128 + signal.SIGKILL}
        stdout.close()

    asyncio.run(main())


def test_more_waiters_than_connections_are_all_served(box):
    async def main():
        gate, release = os.pipe()
        fds = (gate, box.null, box.null)
        options = {"env": {}, "cwd": "/", "uid": 0, "gid": 0, "fds": fds}
        pids = [await box.client.spawn(["/bin/cat"], **options) for _ in range(300)]
        os.close(gate)
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(box.client.wait(pid)) for pid in pids]
            await asyncio.sleep(0)  # let each of them send its request
            os.close(release)
        assert {wait.result() for wait in waits} == {0}

    asyncio.run(main())


def test_the_oldest_uncollected_status_is_forgotten_when_the_table_is_full(box, expect_failure):
    async def main():
        options = {"env": {}, "cwd": "/", "uid": 0, "gid": 0, "fds": (box.null,) * 3}
        first = await box.client.spawn(["/bin/true"], **options)
        await box.all_reaped()
        for _ in range(4096):
            last = await box.client.spawn(["/bin/true"], **options)
        with expect_failure(errno.ESRCH, "wait"):
            await box.client.wait(first)
        assert await box.client.wait(last) == 0

    asyncio.run(main())
