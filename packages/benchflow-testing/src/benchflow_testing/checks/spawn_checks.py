"""Checks of `Sandbox.spawn` and `Process`."""

import asyncio

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.process import ByteReader, ByteWriter

from benchflow_testing.check import expect_equal, promise
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_spawn,
    until,
)

_GROUP = f"({TICKER}) & {TICKER}"


async def _read_all(reader: ByteReader) -> bytes:
    data = bytearray()
    while piece := await reader.read():
        data += piece
    return bytes(data)


async def _read_exactly(reader: ByteReader, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await reader.read(count - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


async def _feed(writer: ByteWriter, data: bytes) -> None:
    await writer.write(data)
    await writer.aclose()


@promise(lacks_spawn)
async def spawn_streams_both_ways_while_it_runs(subject: SandboxSubject) -> None:
    """Written bytes arrive, and the response comes back, before a stream is closed."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(["cat"])
        for word in (b"one\n", b"two\n", b"\x00\xff\n"):
            await process.stdin.write(word)
            expect_equal(await _read_exactly(process.stdout, len(word)), word, "the echo")
        await process.stdin.aclose()
        await process.stdin.aclose()
        expect_equal(await _read_all(process.stdout), b"", "the rest of stdout")
        expect_equal(await process.wait(), 0, "the exit code")
        await process.aclose()


@promise(lacks_spawn)
async def spawn_streams_megabytes_both_ways_at_once(subject: SandboxSubject) -> None:
    """Four megabytes pass in each direction; full pipes do not deadlock."""
    data = bytes(range(256)) * (4 << 12)
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(["cat"])
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(process.stdin, data))
            group.create_task(_read_all(process.stderr))
            found = await _read_all(process.stdout)
        expect_equal(len(found), len(data), "the number of bytes that came back")
        expect_equal(found == data, True, "whether the bytes are the same")
        await process.aclose()


@promise(lacks_spawn)
async def streams_of_a_process_end_with_it(subject: SandboxSubject) -> None:
    """After the exit both streams end, separately. `wait` may be repeated."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn("echo out; echo err >&2; exit 3")
        expect_equal(await _read_all(process.stdout), b"out\n", "stdout")
        expect_equal(await _read_all(process.stderr), b"err\n", "stderr")
        for _ in range(2):
            expect_equal(await process.wait(), 3, "the exit code")
        await process.aclose()


@promise(lacks_spawn)
async def spawn_takes_cwd_and_environment(subject: SandboxSubject) -> None:
    """Both have the same meaning as for `exec`."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "sub/file", b"content ")
        process = await sandbox.spawn(
            'cat file; echo "$WORD"', cwd=subject.inside("sub"), env={"WORD": "given"}
        )
        expect_equal(await _read_all(process.stdout), b"content given\n", "stdout")
        await process.aclose()


@promise(lacks_spawn)
async def kill_ends_the_whole_group(subject: SandboxSubject) -> None:
    """When `kill` returns, children in the background are dead too. Idempotent."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(_GROUP)
        await subject.wait_for_tick(sandbox)
        await process.kill()
        expect_equal(await process.wait(), 137, "the exit code after kill")
        await subject.expect_no_tick(sandbox, "after kill")
        await process.kill()
        await process.aclose()


@promise(lacks_spawn)
async def closing_a_process_kills_it(subject: SandboxSubject) -> None:
    """`aclose` ends a running process. Idempotent."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(_GROUP)
        await subject.wait_for_tick(sandbox)
        await process.aclose()
        await subject.expect_no_tick(sandbox, "after aclose")
        await process.aclose()


@promise(lacks_spawn)
async def writing_to_a_finished_process_is_an_error(subject: SandboxSubject) -> None:
    """`write` raises SandboxError after the reader has ended."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn(["true"])
        await process.wait()

        async def refused() -> bool:
            try:
                await process.stdin.write(b"x" * 1024)
            except SandboxError:
                return True
            return False

        await until(refused, "a write to a finished process never fails")
        await process.aclose()


@promise(lacks_spawn)
async def processes_run_at_once(subject: SandboxSubject) -> None:
    """Two processes and an `exec` run at once, each with its own pipes."""
    async with subject.open_sandbox() as sandbox:
        first = await sandbox.spawn(["cat"])
        second = await sandbox.spawn(["cat"])
        await first.stdin.write(b"1")
        await second.stdin.write(b"2")
        expect_equal((await sandbox.exec("echo 3")).stdout, "3\n", "exec beside them")
        expect_equal(await _read_exactly(second.stdout, 1), b"2", "the second echo")
        expect_equal(await _read_exactly(first.stdout, 1), b"1", "the first echo")
        await first.aclose()
        await second.stdin.aclose()
        expect_equal(await second.wait(), 0, "the exit code of the one that was not killed")
        await second.aclose()


SPAWN_CHECKS: tuple[SandboxCheck, ...] = (
    spawn_streams_both_ways_while_it_runs,
    spawn_streams_megabytes_both_ways_at_once,
    streams_of_a_process_end_with_it,
    spawn_takes_cwd_and_environment,
    kill_ends_the_whole_group,
    closing_a_process_kills_it,
    writing_to_a_finished_process_is_an_error,
    processes_run_at_once,
)
