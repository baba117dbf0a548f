"""Checks of `Sandbox.freeze`."""

import contextlib

from benchflow_contracts.errors import SandboxFrozenError
from benchflow_contracts.sandbox import SupportsKillAll

from benchflow_testing.check import expect, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_freeze,
    lacks_kernel_freeze,
    lacks_kill_all,
    lacks_snapshots,
)


def _lacks_either(subject: SandboxSubject) -> str | None:
    return lacks_freeze(subject) or lacks_snapshots(subject)


@promise(lacks_freeze)
async def freeze_stops_every_process(subject: SandboxSubject) -> None:
    """No process runs inside the block, and all processes continue after it."""
    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox, f"({TICKER}) & {TICKER}")
        async with sandbox.freeze():
            await subject.expect_no_tick(sandbox, "in a frozen sandbox")
        await subject.wait_for_tick(sandbox)


@promise(lacks_kernel_freeze)
async def a_kernel_freeze_stops_background_processes_of_root(subject: SandboxSubject) -> None:
    """A background process of root from an earlier `exec` does not run either."""
    user = "root" if subject.capabilities.users else None
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 &", user=user)
        await subject.wait_for_tick(sandbox)
        async with sandbox.freeze():
            await subject.expect_no_tick(sandbox, "of root in a frozen sandbox")
        await subject.wait_for_tick(sandbox)


@promise(lacks_freeze)
async def freeze_is_reentrant(subject: SandboxSubject) -> None:
    """Only the end of the outermost block thaws the sandbox. It can be frozen again later."""
    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox)
        for _ in range(2):
            async with sandbox.freeze():
                async with sandbox.freeze():
                    await subject.expect_no_tick(sandbox, "in a sandbox that is frozen twice")
                await subject.expect_no_tick(sandbox, "after the inner freeze ended")
            await subject.wait_for_tick(sandbox)


@promise(lacks_freeze)
async def freeze_thaws_on_error(subject: SandboxSubject) -> None:
    """An exception inside the block is raised to the caller, and the sandbox runs again."""
    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox)
        is_swallowed = False
        with contextlib.suppress(KeyError):
            async with sandbox.freeze():
                raise KeyError("of the check")
            is_swallowed = True
        expect(not is_swallowed, "the error was not raised to the caller")
        await subject.wait_for_tick(sandbox)


@promise(lacks_freeze)
async def download_works_in_a_frozen_sandbox(subject: SandboxSubject) -> None:
    """Files can be copied out while nothing inside runs."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"content")
        async with sandbox.freeze():
            expect_equal(await subject.get(sandbox, "file"), b"content", "the file")


@promise(lacks_freeze)
async def exec_inside_a_freeze_block_is_refused(subject: SandboxSubject) -> None:
    """`exec` inside the block raises SandboxFrozenError at once, instead of waiting forever."""
    async with subject.open_sandbox() as sandbox:
        async with sandbox.freeze():
            call = sandbox.exec("echo never", timeout=2)
            await expect_error(SandboxFrozenError, call, "exec inside a freeze block")
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")


@promise(_lacks_either)
async def snapshot_works_in_a_frozen_sandbox(subject: SandboxSubject) -> None:
    """A snapshot inside the block has the state of that moment. The sandbox stays frozen."""
    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox)
        async with sandbox.freeze():
            ticks = await subject.ticks(sandbox)
            image = await sandbox.snapshot("filesystem")
            await subject.expect_no_tick(sandbox, "in a frozen sandbox after its snapshot")
        async with subject.open_sandbox(image=image) as child:
            expect_equal(await subject.ticks(child), ticks, "the progress in the child")
        await subject.provider.discard(image)
        await subject.wait_for_tick(sandbox)


@promise(_lacks_either)
async def a_snapshot_has_the_state_that_while_frozen_reads(subject: SandboxSubject) -> None:
    """No process runs while `while_frozen` reads, and a child has exactly what it read."""
    seen: list[int] = []

    async def read() -> None:
        await subject.expect_no_tick(sandbox, "while a snapshot is read")
        seen.append(await subject.ticks(sandbox))

    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox)
        image = await sandbox.snapshot("filesystem", while_frozen=read)
        await subject.wait_for_tick(sandbox)
        async with subject.open_sandbox(image=image) as child:
            expect_equal([await subject.ticks(child)], seen, "the progress in the child")
        await subject.provider.discard(image)


@promise(_lacks_either)
async def an_error_in_while_frozen_passes_through(subject: SandboxSubject) -> None:
    """The error of `while_frozen` is raised. The sandbox runs, and can be snapshot again."""

    async def read() -> None:
        raise KeyError("of the check")

    async with subject.open_sandbox() as sandbox:
        await subject.tick(sandbox)
        for level in sorted(subject.capabilities.snapshot_levels):
            await expect_error(
                KeyError, sandbox.snapshot(level, while_frozen=read), f"a {level!r} snapshot"
            )
            await subject.wait_for_tick(sandbox)
            async with subject.sealed(sandbox, level):
                await subject.wait_for_tick(sandbox)


@promise(lacks_kill_all)
async def kill_all_ends_every_process_and_keeps_the_files(subject: SandboxSubject) -> None:
    """No process of the task runs afterwards, in any session. The sandbox stays usable."""
    async with subject.open_sandbox() as sandbox:
        expect(isinstance(sandbox, SupportsKillAll), "capabilities claim kill_all")
        assert isinstance(sandbox, SupportsKillAll)
        process = await sandbox.spawn("sleep 60") if subject.capabilities.spawn else None
        await subject.tick(sandbox)
        await sandbox.kill_all()
        if process is not None:
            expect_equal(await process.wait(), 137, "the exit code of a killed process")
            await process.aclose()
        ticks = await subject.ticks(sandbox)
        await subject.expect_no_tick(sandbox, "after kill_all")
        expect(ticks > 0, "the files are still there")
        await sandbox.kill_all()
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")


FREEZE_CHECKS: tuple[SandboxCheck, ...] = (
    freeze_stops_every_process,
    a_kernel_freeze_stops_background_processes_of_root,
    freeze_is_reentrant,
    freeze_thaws_on_error,
    download_works_in_a_frozen_sandbox,
    exec_inside_a_freeze_block_is_refused,
    kill_all_ends_every_process_and_keeps_the_files,
    snapshot_works_in_a_frozen_sandbox,
    a_snapshot_has_the_state_that_while_frozen_reads,
    an_error_in_while_frozen_passes_through,
)
