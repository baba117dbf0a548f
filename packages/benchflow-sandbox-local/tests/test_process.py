# Names are looked at as the kernel has them.
# ruff: noqa: PTH208, PT012

import asyncio
import os

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec


def test_a_conversation_goes_both_ways(with_box):
    async def check(sandbox):
        process = await sandbox.spawn(["cat"])
        for number in range(50):
            line = f"line {number}\n".encode()
            await process.stdin.write(line)
            assert await process.stdout.read() == line
        await process.stdin.aclose()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
        await process.aclose()

    with_box(check)


def test_a_slow_reader_holds_the_writer_back(with_box):
    async def check(sandbox):
        process = await sandbox.spawn("yes | head -c 10000000")
        total = 0
        while data := await process.stdout.read(100_000):
            total += len(data)
        assert total == 10_000_000
        assert await process.wait() == 0
        await process.aclose()

    with_box(check)


def test_a_large_write_waits_for_the_reader(with_box):
    async def check(sandbox):
        process = await sandbox.spawn("sleep 0.2; wc -c")
        await process.stdin.write(bytes(3_000_000))
        await process.stdin.aclose()
        assert await process.stdout.read() == b"3000000\n"
        await process.aclose()

    with_box(check)


def test_the_death_of_a_process_is_the_end_of_its_streams(with_box):
    async def check(sandbox):
        process = await sandbox.spawn("echo last; kill -9 $$")
        assert await process.stdout.read() == b"last\n"
        assert await process.stdout.read() == b""
        assert await process.stderr.read() == b""
        assert await process.wait() == 137
        assert await process.wait() == 137
        with pytest.raises(SandboxError):
            for _ in range(100):
                await process.stdin.write(bytes(65536))
        await process.aclose()
        await process.aclose()

    with_box(check)


def test_kill_ends_the_group_and_can_be_repeated(with_box):
    async def check(sandbox):
        process = await sandbox.spawn("sleep 1000 & sleep 1000")
        await process.kill()
        await process.kill()
        assert await process.wait() == 137
        assert (await sandbox.exec("pgrep -c sleep")).stdout == "0\n"
        await process.aclose()

    with_box(check)


def test_closing_kills_what_still_runs(with_box):
    async def check(sandbox):
        process = await sandbox.spawn(["sleep", "1000"])
        await process.aclose()
        assert (await sandbox.exec("pgrep -c sleep")).stdout == "0\n"

    with_box(check)


def test_a_process_of_a_box_that_is_torn_down_ends(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["sleep", "1000"])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(process.wait())
            await sandbox.teardown()
        assert waiting.result() == 137
        assert await process.stdout.read() == b""
        await process.aclose()

    with_provider(check)


def test_no_descriptor_is_left_behind(with_box):
    async def check(sandbox):
        await sandbox.exec("true")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            process = await sandbox.spawn(["cat"])
            await process.aclose()
            await sandbox.exec("echo x >&2")
            with pytest.raises(SandboxError):
                await sandbox.spawn(["no-such-program"])
        assert len(os.listdir("/proc/self/fd")) == before

    with_box(check)
