"""Checks of live snapshots: the state of a child, and the running parent."""

import asyncio
from contextlib import AsyncExitStack

from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
    TransferError,
)
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import Sandbox

from benchflow_testing.check import expect, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import (
    STILL_SEC,
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_live_snapshots,
    until,
)

_MEMORY = "n=; while :; do n=x$n; echo $n >> memory; sleep 0.05 || sleep 1; done"
"""Writes lines of growing length. The length is only in the memory of the process."""


def _lacks_either(subject: SandboxSubject) -> str | None:
    missing = "capabilities: no freeze" if subject.capabilities.freeze == "none" else None
    return missing or lacks_live_snapshots(subject)


def _has_live_snapshots(subject: SandboxSubject) -> str | None:
    return None if lacks_live_snapshots(subject) else "capabilities: there are live snapshots"


@promise()
async def the_live_engine_is_named(subject: SandboxSubject) -> None:
    """`live_engine` is set exactly if the level `live` is supported."""
    capabilities = subject.capabilities
    live = "live" in capabilities.snapshot_levels
    expect_equal(capabilities.live_engine is not None, live, "whether an engine is named")


@promise(lacks_live_snapshots)
async def a_live_snapshot_copies_the_processes(subject: SandboxSubject) -> None:
    """A process continues in the child from its state in the snapshot, and also in the parent."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 & echo started")
        before = await subject.wait_for_tick(sandbox)
        async with subject.sealed(sandbox, "live") as image:
            expect_equal(image.level, "live", "the level")
            async with subject.open_sandbox(image=image) as child:
                expect(
                    await subject.ticks(child) >= before, "the process started again in the child"
                )
                await subject.wait_for_tick(child)
                await subject.wait_for_tick(sandbox)


@promise(lacks_live_snapshots)
async def a_live_child_has_the_memory_of_its_parent(subject: SandboxSubject) -> None:
    """State that only a process's memory has is in the child; the process is not restarted."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({_MEMORY}) </dev/null >/dev/null 2>&1 & echo started")
        await _wait_for_lines(subject, sandbox, 3)
        async with (
            subject.sealed(sandbox, "live") as image,
            subject.open_sandbox(image=image) as child,
        ):
            seen = await _wait_for_lines(subject, child, 3)
            expect_equal(seen, [*range(1, len(seen) + 1)], "the counts in memory, one by one")


@promise(_lacks_either)
async def a_live_snapshot_has_the_state_of_the_freeze(subject: SandboxSubject) -> None:
    """A snapshot inside a freeze has the files and memory of the freeze."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({_MEMORY}) </dev/null >/dev/null 2>&1 & echo started")
        await _wait_for_lines(subject, sandbox, 3)
        async with sandbox.freeze():
            content = await subject.get(sandbox, "memory")
            image = await sandbox.snapshot("live")
            await asyncio.sleep(STILL_SEC)
            expect_equal(await subject.get(sandbox, "memory"), content, "the frozen parent's file")
        await subject.output(sandbox, "rm memory")
        async with subject.open_sandbox(image=image) as child:
            await _wait_for_lines(subject, child, 3)
            found = await subject.get(child, "memory")
            expect(found.startswith(content), "the child's file does not continue the frozen file")
            lines = found.splitlines()[:-1]
            expect_equal([len(line) for line in lines], [*range(1, len(lines) + 1)], "the counts")
        await subject.provider.discard(image)
        await _wait_for_lines(subject, sandbox, 1)


@promise(_lacks_either)
async def a_live_snapshot_has_the_state_that_while_frozen_reads(subject: SandboxSubject) -> None:
    """No process runs while `while_frozen` reads. Files and memory continue from that state."""
    held: list[bytes] = []

    async def read() -> None:
        for _ in range(2):
            held.append(await subject.get(sandbox, "memory"))
            await asyncio.sleep(STILL_SEC)

    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({_MEMORY}) </dev/null >/dev/null 2>&1 & echo started")
        await _wait_for_lines(subject, sandbox, 3)
        image = await sandbox.snapshot("live", while_frozen=read)
        expect_equal(len(held), 2, "how often the reader read")
        expect_equal(held[0], held[1], "the file while it was read")
        await _wait_for_lines(subject, sandbox, 1)
        async with subject.open_sandbox(image=image) as child:
            seen = await _wait_for_lines(subject, child, 3)
            expect_equal(seen, [*range(1, len(seen) + 1)], "the counts in memory, one by one")
            found = await subject.get(child, "memory")
            expect(
                found.startswith(held[0]),
                "the child's file does not continue the file that was read",
            )
        await subject.provider.discard(image)


@promise(lacks_live_snapshots)
async def the_parent_keeps_its_processes(subject: SandboxSubject) -> None:
    """A process of the parent keeps its id and its pipes, and ends as without a snapshot."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn("cat; exit 3")
        ident = process.id
        await _echoes(process, b"before\n")
        async with subject.sealed(sandbox, "live") as image, subject.open_sandbox(image=image):
            expect_equal(process.id, ident, "the id")
            await _echoes(process, b"after\n")
        await process.stdin.aclose()
        expect_equal(await process.wait(), 3, "the exit code")


@promise(lacks_live_snapshots)
async def attach_returns_the_process_of_the_child(subject: SandboxSubject) -> None:
    """The process has the id from the parent, but its own input, output and exit code."""
    async with subject.open_sandbox() as sandbox, AsyncExitStack() as stack:
        process = await sandbox.spawn("cat; exit 4")
        await _echoes(process, b"before\n")
        image = await stack.enter_async_context(subject.sealed(sandbox, "live"))
        first = await stack.enter_async_context(subject.open_sandbox(image=image))
        second = await stack.enter_async_context(subject.open_sandbox(image=image))
        one, two = await first.attach(process.id), await second.attach(process.id)
        expect_equal((one.id, two.id), (process.id, process.id), "the ids in the children")
        await one.stdin.write(b"first\n")
        await two.stdin.write(b"second\n")
        await process.stdin.write(b"parent\n")
        for held, wanted in ((two, b"second\n"), (process, b"parent\n"), (one, b"first\n")):
            expect_equal(await _read(held, len(wanted)), wanted, "the output")
        await one.stdin.aclose()
        expect_equal(await one.wait(), 4, "the exit code in the first child")
        await two.kill()
        expect(await two.wait() != 4, "a killed process ended by itself")
        await _echoes(process, b"still here\n")


@promise(lacks_live_snapshots)
async def unread_output_comes_first_in_every_child(subject: SandboxSubject) -> None:
    """`waiting` counts the unread output. Parent and child both receive it."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn("echo unread; cat")
        wanted = b"unread\n"
        await _wait_for_output(process, len(wanted))
        async with subject.sealed(sandbox, "live") as image:
            for _ in range(2):
                async with subject.open_sandbox(image=image) as child:
                    held = await child.attach(process.id)
                    await _wait_for_output(held, len(wanted))
                    await held.stdin.write(b"new\n")
                    expect_equal(await _read(held, 11), wanted + b"new\n", "the child's output")
        expect_equal(await _read(process, len(wanted)), wanted, "the parent's output")
        await process.aclose()


@promise(lacks_live_snapshots)
async def attach_refuses_unknown_and_attached_processes(
    subject: SandboxSubject,
) -> None:
    """`attach` raises SandboxError for an unknown id, a later process, or an attached process."""
    async with subject.open_sandbox() as sandbox:
        process = await sandbox.spawn("cat")
        await _echoes(process, b"before\n")
        await expect_error(SandboxError, sandbox.attach("nobody"), "attach in the parent")
        async with (
            subject.sealed(sandbox, "live") as image,
            subject.open_sandbox(image=image) as child,
        ):
            later = await child.spawn("cat")
            await expect_error(SandboxError, child.attach(later.id), "attach to a new process")
            held = await child.attach(process.id)
            await expect_error(SandboxError, child.attach(process.id), "a second attach")
            await _echoes(held, b"on\n")


@promise(_has_live_snapshots)
async def attach_without_live_snapshots_is_refused(subject: SandboxSubject) -> None:
    """`attach` raises SandboxUnsupportedError for each id."""
    async with subject.open_sandbox() as sandbox:
        await expect_error(SandboxUnsupportedError, sandbox.attach("nobody"), "attach")


@promise(lacks_live_snapshots)
async def live_children_are_isolated(subject: SandboxSubject) -> None:
    """Writes, deletions and ended processes in one child do not affect another sandbox."""
    async with subject.open_sandbox() as sandbox, AsyncExitStack() as stack:
        await subject.output(sandbox, "echo base > file; echo base > other")
        await sandbox.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 & echo started")
        await subject.wait_for_tick(sandbox)
        image = await stack.enter_async_context(subject.sealed(sandbox, "live"))
        first = await stack.enter_async_context(subject.open_sandbox(image=image))
        second = await stack.enter_async_context(subject.open_sandbox(image=image))
        await subject.output(first, "echo 1 > file; rm other")
        await first.teardown()
        for one in (second, sandbox):
            expect_equal(await subject.output(one, "cat file other"), "base\nbase\n", "the files")
            await subject.wait_for_tick(one)
        expect_equal(len({sandbox.id, first.id, second.id}), 3, "the number of different ids")


@promise(lacks_live_snapshots)
async def many_live_children_start_at_once(subject: SandboxSubject) -> None:
    """Four children start from one image at once, and each runs independently."""

    async def child(number: int) -> None:
        async with subject.open_sandbox(image=image) as one:
            held = await one.attach(process.id)
            await _echoes(held, f"{number}\n".encode())
            found = await subject.output(one, f"cat file; echo {number} > file; cat file")
            expect_equal(found, f"base{number}\n", f"the file of child {number}")

    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"base")
        process = await sandbox.spawn("cat")
        await _echoes(process, b"before\n")
        async with subject.sealed(sandbox, "live") as image, asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(child(number))
        await _echoes(process, b"after\n")


@promise(lacks_live_snapshots)
async def a_live_child_can_be_forked_again(subject: SandboxSubject) -> None:
    """Three generations have the same process, each with the work of the earlier ones."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(subject.open_sandbox())
        held = await sandbox.spawn(_MEMORY)
        ident = held.id
        for number in range(3):
            await subject.output(sandbox, f"echo {number} >> file")
            image = await stack.enter_async_context(subject.sealed(sandbox, "live"))
            sandbox = await stack.enter_async_context(subject.open_sandbox(image=image))
            held = await sandbox.attach(ident)
            await _lines(subject, sandbox, "memory", 3 * number + 3)
        expect_equal(await subject.output(sandbox, "cat file"), "0\n1\n2\n", "the files")
        found = (await subject.get(sandbox, "memory")).splitlines()[:-1]
        expect_equal([len(line) for line in found], [*range(1, len(found) + 1)], "the counts")
        await held.kill()


@promise(lacks_live_snapshots)
async def children_survive_the_discard_of_a_live_snapshot(subject: SandboxSubject) -> None:
    """The parent and the children continue after `discard`, which may be repeated."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 & echo started")
        await subject.wait_for_tick(sandbox)
        image = await sandbox.snapshot("live")
        async with subject.open_sandbox(image=image) as child:
            await subject.provider.discard(image)
            await subject.provider.discard(image)
            await subject.wait_for_tick(child)
            await subject.wait_for_tick(sandbox)
        again = subject.provider.create(sandbox.spec, image=image)
        await expect_error((SandboxError, SnapshotError), again, "create")


async def _count(subject: SandboxSubject, sandbox: Sandbox, name: str) -> int:
    try:
        return (await subject.get(sandbox, name)).count(b"\n")
    except TransferError:
        return 0


async def _lines(subject: SandboxSubject, sandbox: Sandbox, name: str, least: int) -> list[int]:
    async def is_reached() -> bool:
        return await _count(subject, sandbox, name) >= least

    await until(is_reached, f"{name!r} does not grow to {least} lines")
    return [len(line) for line in (await subject.get(sandbox, name)).split(b"\n")[:-1]]


async def _wait_for_lines(subject: SandboxSubject, sandbox: Sandbox, more: int) -> list[int]:
    now = await _count(subject, sandbox, "memory")
    return await _lines(subject, sandbox, "memory", now + more)


async def _echoes(process: Process, data: bytes) -> None:
    await process.stdin.write(data)
    expect_equal(await _read(process, len(data)), data, "the output of `cat`")


async def _read(process: Process, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await process.stdout.read(count - len(data))
        expect(more, f"the output ended after {data!r}")
        data += more
    return data


async def _wait_for_output(process: Process, count: int) -> None:
    async def is_reached() -> bool:
        return process.stdout.waiting() == count

    await until(is_reached, f"`waiting` does not reach {count} bytes")


LIVE_CHECKS: tuple[SandboxCheck, ...] = (
    a_live_snapshot_copies_the_processes,
    a_live_child_has_the_memory_of_its_parent,
    a_live_snapshot_has_the_state_of_the_freeze,
    a_live_snapshot_has_the_state_that_while_frozen_reads,
    the_parent_keeps_its_processes,
    attach_returns_the_process_of_the_child,
    unread_output_comes_first_in_every_child,
    attach_refuses_unknown_and_attached_processes,
    live_children_are_isolated,
    many_live_children_start_at_once,
    a_live_child_can_be_forked_again,
    children_survive_the_discard_of_a_live_snapshot,
    attach_without_live_snapshots_is_refused,
    the_live_engine_is_named,
)
