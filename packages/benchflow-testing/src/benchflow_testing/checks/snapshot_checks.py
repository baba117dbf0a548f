"""Checks of snapshots: `Sandbox.snapshot`, `restore`, `create(image=…)`, `discard`."""

import asyncio
from contextlib import AsyncExitStack

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SnapshotLevel

from benchflow_testing.check import expect, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_instant_snapshots,
    lacks_snapshots,
)

_BULK_FILES = 32
_BULK_BYTES = 256 * 1024
_LEVELS: tuple[SnapshotLevel, ...] = ("filesystem", "live")


def _has_all_levels(subject: SandboxSubject) -> str | None:
    known = subject.capabilities.snapshot_levels
    return "every level is supported" if known.issuperset(_LEVELS) else None


@promise(lacks_snapshots)
async def a_snapshot_has_the_files(subject: SandboxSubject) -> None:
    """A sandbox from the snapshot has the same contents, modes and directories."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "kept", b"kept")
        await subject.output(
            sandbox, "mkdir d; echo 1 > d/f; echo '#!/bin/sh' > run; chmod 755 run"
        )
        async with subject.sealed(sandbox) as image:
            expect_equal(image.level, "filesystem", "the level")
            expect_equal(image.provider, subject.provider.name, "the provider")
            async with subject.open_sandbox(image=image) as child:
                expect_equal(await subject.output(child, "cat kept d/f"), "kept1\n", "the files")
                await subject.output(child, "./run; echo 2 > kept; echo 2 > d/g")


@promise(lacks_snapshots)
async def a_snapshot_does_not_change_the_sandbox(subject: SandboxSubject) -> None:
    """The processes continue, the files can be written, and the id stays."""
    async with subject.open_sandbox() as sandbox:
        ident = sandbox.id
        await subject.tick(sandbox)
        async with subject.sealed(sandbox):
            await subject.wait_for_tick(sandbox)
            await subject.output(sandbox, "echo 1 > after; cat after")
        await subject.wait_for_tick(sandbox)
        expect_equal(sandbox.id, ident, "the id")


@promise(lacks_snapshots)
async def later_writes_are_not_in_a_snapshot(subject: SandboxSubject) -> None:
    """Later writes of the parent do not appear in a child."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"then")
        async with subject.sealed(sandbox) as image:
            await subject.output(sandbox, "echo now > file; echo new > new")
            async with subject.open_sandbox(image=image) as child:
                expect_equal(await subject.get(child, "file"), b"then", "the file in the child")
                expect((await child.exec("test -e new")).exit_code != 0, "a later file is there")
                expect_equal(await subject.get(sandbox, "file"), b"now\n", "the parent's file")


@promise()
async def the_consistency_of_snapshots_is_named(subject: SandboxSubject) -> None:
    """The consistency is set exactly if `filesystem` is supported, and each image has it."""
    consistency = subject.capabilities.snapshot_consistency
    files = "filesystem" in subject.capabilities.snapshot_levels
    expect_equal(consistency is not None, files, "whether a consistency is named")
    if not files:
        return
    async with subject.open_sandbox() as sandbox, subject.sealed(sandbox) as image:
        expect_equal(image.consistency, consistency, "the consistency of an image")
        if subject.capabilities.freeze != "kernel":
            return
        async with sandbox.freeze(), subject.sealed(sandbox) as frozen:
            expect_equal(frozen.consistency, "instant", "the consistency inside a kernel freeze")


@promise(lacks_instant_snapshots)
async def an_instant_snapshot_is_not_torn(subject: SandboxSubject) -> None:
    """One process writes to two files in turn. No snapshot has more lines of the second file.

    Other files lie between the two, so that a copy of a running sandbox takes a while.
    """
    bulk = subject.folder()
    for number in range(_BULK_FILES):
        (bulk / str(number)).write_bytes(bytes(_BULK_BYTES))
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "echo x > a-first; echo x > z-second")
        await sandbox.upload(bulk, subject.inside("m-bulk"))
        await sandbox.spawn("while :; do echo x >> a-first; echo x >> z-second; done")
        for _ in range(3):
            async with subject.sealed(sandbox) as image, subject.open_sandbox(image=image) as child:
                first = len(await subject.get(child, "a-first"))
                second = len(await subject.get(child, "z-second"))
                expect(0 <= first - second <= len("x\n"), f"{first} and {second} bytes: torn")


@promise(lacks_snapshots)
async def siblings_and_parent_are_isolated(subject: SandboxSubject) -> None:
    """A write, a change and a deletion in one child do not affect another sandbox."""
    async with subject.open_sandbox() as sandbox, AsyncExitStack() as stack:
        await subject.output(sandbox, "echo base > file; echo base > other; mkdir dir")
        image = await stack.enter_async_context(subject.sealed(sandbox))
        first = await stack.enter_async_context(subject.open_sandbox(image=image))
        second = await stack.enter_async_context(subject.open_sandbox(image=image))
        await subject.output(first, "echo 1 > file; rm other; echo 1 > dir/one")
        await subject.output(second, "echo 2 >> file")
        expect_equal(await subject.get(first, "file"), b"1\n", "the first child's file")
        expect_equal(await subject.get(second, "file"), b"base\n2\n", "the second child's file")
        for one in (sandbox, second):
            found = await subject.output(one, "cat other; ls dir")
            expect_equal(found, "base\n", "what a sibling removed and added")
        expect_equal(await subject.get(sandbox, "file"), b"base\n", "the parent's file")
        third = await stack.enter_async_context(subject.open_sandbox(image=image))
        expect_equal(await subject.output(third, "cat file other"), "base\nbase\n", "the image")


@promise(lacks_snapshots)
async def many_children_start_at_once(subject: SandboxSubject) -> None:
    """Six sandboxes start from one image at once, and each is isolated."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"base")

        async def child(number: int) -> None:
            async with subject.open_sandbox(image=image) as one:
                found = await subject.output(one, f"cat file; echo {number} > file; cat file")
                expect_equal(found, f"base{number}\n", f"the file of child {number}")
                idents.add(one.id)

        idents = {sandbox.id}
        async with subject.sealed(sandbox) as image, asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(child(number))
        expect_equal(len(idents), 7, "the number of different ids")


@promise(lacks_snapshots)
async def a_snapshot_of_a_child_has_all_changes(subject: SandboxSubject) -> None:
    """A snapshot of a child has the changes and deletions of every generation."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(subject.open_sandbox())
        await subject.output(sandbox, "echo 0 > f0; echo 0 > all")
        for number in range(1, 4):
            image = await stack.enter_async_context(subject.sealed(sandbox))
            sandbox = await stack.enter_async_context(subject.open_sandbox(image=image))
            text = f"rm f{number - 1}; echo {number} > f{number}; echo {number} >> all"
            await subject.output(sandbox, text)
        image = await stack.enter_async_context(subject.sealed(sandbox))
        last = await stack.enter_async_context(subject.open_sandbox(image=image))
        expect_equal(
            await subject.output(last, "cat all; ls"), "0\n1\n2\n3\nall\nf3\n", "the files"
        )


@promise(lacks_snapshots)
async def restore_rolls_the_files_back(subject: SandboxSubject) -> None:
    """Changed, added and removed files are restored. The id and the spec stay."""
    async with subject.open_sandbox() as sandbox:
        ident, spec = sandbox.id, sandbox.spec
        await subject.output(sandbox, "mkdir d; echo 1 > d/a; echo 1 > d/b")
        async with subject.sealed(sandbox) as image:
            for _ in range(2):
                await subject.output(sandbox, "echo 2 > d/a; rm d/b; echo 2 > d/c")
                await sandbox.restore(image)
                found = await subject.output(sandbox, "ls d; cat d/a d/b")
                expect_equal(found, "a\nb\n1\n1\n", "the files")
        expect_equal((sandbox.id, sandbox.spec), (ident, spec), "id and spec")
        expect_equal(await subject.output(sandbox, "echo 3 > d/c; cat d/c"), "3\n", "a new write")


@promise(lacks_snapshots)
async def restore_ends_all_processes(subject: SandboxSubject) -> None:
    """Earlier processes do not write to the restored files."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "ticks", b"x\n")
        async with subject.sealed(sandbox) as image:
            process = await sandbox.spawn(TICKER) if subject.capabilities.spawn else None
            await subject.tick(sandbox)
            await sandbox.restore(image)
            await subject.expect_no_tick(sandbox, "from before a restore")
            if process is not None:
                expect(await process.wait() != 0, "the process ended well")


@promise(lacks_snapshots)
async def sandboxes_survive_the_discard_of_their_snapshot(subject: SandboxSubject) -> None:
    """Sandboxes from the snapshot continue after `discard`, which may be repeated."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"base")
        image = await sandbox.snapshot("filesystem")
        async with subject.open_sandbox(image=image) as child:
            await subject.provider.discard(image)
            await subject.provider.discard(image)
            found = await subject.output(child, "cat file; echo 2 > file; cat file")
            expect_equal(found, "base2\n", "the child's file")
        expect_equal(await subject.get(sandbox, "file"), b"base", "the parent's file")


@promise(_has_all_levels)
async def an_unsupported_level_is_refused(subject: SandboxSubject) -> None:
    """A level that `capabilities` does not list raises SandboxUnsupportedError."""
    async with subject.open_sandbox() as sandbox:
        for level in _LEVELS:
            if level not in subject.capabilities.snapshot_levels:
                call = sandbox.snapshot(level)
                await expect_error(SandboxUnsupportedError, call, f"a {level!r} snapshot")
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")


SNAPSHOT_CHECKS: tuple[SandboxCheck, ...] = (
    a_snapshot_has_the_files,
    a_snapshot_does_not_change_the_sandbox,
    later_writes_are_not_in_a_snapshot,
    the_consistency_of_snapshots_is_named,
    an_instant_snapshot_is_not_torn,
    siblings_and_parent_are_isolated,
    many_children_start_at_once,
    a_snapshot_of_a_child_has_all_changes,
    restore_rolls_the_files_back,
    restore_ends_all_processes,
    sandboxes_survive_the_discard_of_their_snapshot,
    an_unsupported_level_is_refused,
)
