import asyncio
import errno
import os
import signal
import sys

import pytest

DAEMONS = """
trap '' TERM HUP INT
for number in 1 2 3 4; do (trap '' TERM; setsid sh -c 'trap "" TERM; sleep 1000' & ) & done
echo up
sleep 1000
"""


async def first_line(stdout):
    return await asyncio.to_thread(stdout.readline)


def test_a_signal_reaches_the_whole_group(box):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", "sleep 1000 & echo up; wait")
        await first_line(stdout)
        await box.client.kill(pid, signal.SIGTERM)
        assert await box.client.wait(pid) == 128 + signal.SIGTERM
        assert await asyncio.to_thread(stdout.read) == b""  # the background sleep is gone too
        stdout.close()

    asyncio.run(main())


def test_a_signal_can_go_to_the_leader_alone_and_its_group_can_be_killed_later(box):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", "sleep 1000 & echo $!; wait")
        await first_line(stdout)
        await box.client.kill(pid, signal.SIGKILL, group=False)
        assert await box.client.wait(pid) == 128 + signal.SIGKILL
        await box.client.kill(pid, 0)  # the group outlives its leader
        await box.client.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(stdout.read) == b""
        stdout.close()

    asyncio.run(main())


def test_what_is_gone_cannot_be_killed(box, expect_failure):
    async def main():
        pid, stdout = await box.start("true")
        await box.client.wait(pid)
        for group in (True, False):
            with expect_failure(errno.ESRCH, "kill"):
                await box.client.kill(pid, signal.SIGKILL, group=group)
        stdout.close()

    asyncio.run(main())


@pytest.mark.parametrize(("pid", "number"), [(0, 9), (1, 9), (2**31, 9), (2**32 - 2, 9), (2, 999)])
def test_init_everybody_and_nonsense_are_no_targets(box, expect_failure, pid, number):
    async def main():
        for group in (True, False):
            with expect_failure(errno.EINVAL, "request"):
                await box.client.kill(pid, number, group=group)
        await box.client.ping()

    asyncio.run(main())


def test_kill_all_ends_even_daemons_that_ignore_signals(box):
    async def main():
        pid, stdout = await box.start("/bin/sh", "-c", DAEMONS)
        assert await first_line(stdout) == b"up\n"
        await box.client.kill_all()
        assert box.children() == []
        assert await asyncio.to_thread(stdout.read) == b""
        assert await box.client.wait(pid) == 128 + signal.SIGKILL
        assert (await box.run("echo", "alive"))[1] == b"alive\n"
        stdout.close()

    asyncio.run(main())


def test_kill_all_of_an_empty_box_returns(box):
    asyncio.run(box.client.kill_all())


def test_waiters_learn_of_kill_all(box):
    async def main():
        pid, stdout = await box.start("sleep", "1000")
        async with asyncio.TaskGroup() as group:
            wait = group.create_task(box.client.wait(pid))
            await asyncio.sleep(0)  # let it send its request
            await box.client.ping()
            await box.client.kill_all()
        assert wait.result() == 128 + signal.SIGKILL
        stdout.close()

    asyncio.run(main())


def test_sigterm_ends_the_box_in_order(box):
    async def main():
        _, stdout = await box.start("/bin/sh", "-c", DAEMONS)
        await first_line(stdout)
        os.kill(box.init_pid, signal.SIGTERM)
        assert await asyncio.to_thread(box.outer.wait) == 0  # unshare passes init's status on
        assert await asyncio.to_thread(stdout.read) == b""
        stdout.close()

    asyncio.run(main())


FORGE = """
import ctypes, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
for code in (0, -1, -6):
    # Of nobody here, as the one from outside is.
    info = struct.pack("=iiiiii", signal.SIGTERM, 0, code, 0, 0, 0).ljust(128, bytes(1))
    libc.syscall(129 if os.uname().machine == "x86_64" else 138, 1, signal.SIGTERM, info)
os.kill(1, signal.SIGTERM)
print("sent", flush=True)
"""


def test_nobody_inside_ends_the_box_by_sigterm(box):
    async def main():
        _, stdout = await box.start(sys.executable, "-c", FORGE)
        assert await first_line(stdout) == b"sent\n"
        await box.client.ping()
        os.kill(box.init_pid, signal.SIGTERM)
        assert await asyncio.to_thread(box.outer.wait) == 0
        stdout.close()

    asyncio.run(main())
