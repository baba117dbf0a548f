import asyncio

import pytest

ORPHANS = "for n in 1 2 3 4 5 6 7 8 9; do (sh -c 'sleep 0.01 &' &) ; done; exit 3"


def test_an_idle_init_holds_its_listening_socket_and_nothing_else(box):
    async def main():
        pid, stdout = await box.start("sleep", "1000")
        await box.client.ping()
        (only,) = box.open_fds()
        assert only.startswith("socket:")
        await box.client.kill(pid, 9)
        await box.client.wait(pid)
        stdout.close()

    asyncio.run(main())


def test_a_pipe_ends_with_its_process_because_init_kept_no_copy(box):
    async def main():
        _, stdout = await box.start("echo", "last words")
        assert await asyncio.to_thread(stdout.read) == b"last words\n"
        stdout.close()

    asyncio.run(main())


def test_orphans_are_reaped_silently(box):
    async def main():
        status, _ = await box.run("/bin/sh", "-c", ORPHANS)
        assert status == 3
        await box.all_reaped()

    asyncio.run(main())


@pytest.mark.parametrize("spawns", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_spawns_leave_no_fd_and_no_zombie_behind(box, spawns):
    async def many(fd):
        options = {"env": {}, "cwd": "/", "uid": 0, "gid": 0, "fds": (fd, fd, fd)}
        for _ in range(spawns // 4):
            pid = await box.client.spawn(["/bin/true"], **options)
            assert await box.client.wait(pid) == 0

    async def main():
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(many(box.null))
        await box.client.ping()
        assert box.children() == []
        assert len(box.open_fds()) == 1

    asyncio.run(main())
