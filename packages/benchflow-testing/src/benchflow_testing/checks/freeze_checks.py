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
async def freeze_holds_every_process_still(subject: SandboxSubject) -> None:
    """No process runs inside the block, and all processes continue after it."""
    async with subject.box() as box:
        await subject.tick(box, f"({TICKER}) & {TICKER}")
        async with box.freeze():
            await subject.stands_still(box, "in a frozen sandbox")
        await subject.moves_on(box)


@promise(lacks_kernel_freeze)
async def a_kernel_freeze_holds_the_background_of_root(subject: SandboxSubject) -> None:
    """A background process of root from an earlier `exec` does not run either."""
    user = "root" if subject.capabilities.users else None
    async with subject.box() as box:
        await box.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 &", user=user)
        await subject.moves_on(box)
        async with box.freeze():
            await subject.stands_still(box, "of root in a frozen sandbox")
        await subject.moves_on(box)


@promise(lacks_freeze)
async def freeze_is_reentrant(subject: SandboxSubject) -> None:
    """Only the end of the outermost block thaws the sandbox. It can be frozen again later."""
    async with subject.box() as box:
        await subject.tick(box)
        for _ in range(2):
            async with box.freeze():
                async with box.freeze():
                    await subject.stands_still(box, "in a sandbox that is frozen twice")
                await subject.stands_still(box, "after the inner freeze ended")
            await subject.moves_on(box)


@promise(lacks_freeze)
async def freeze_thaws_on_error(subject: SandboxSubject) -> None:
    """An exception inside the block is raised to the caller, and the sandbox runs again."""
    async with subject.box() as box:
        await subject.tick(box)
        swallowed = False
        with contextlib.suppress(KeyError):
            async with box.freeze():
                raise KeyError("of the check")
            swallowed = True
        expect(not swallowed, "the error did not pass through")
        await subject.moves_on(box)


@promise(lacks_freeze)
async def download_works_in_a_frozen_sandbox(subject: SandboxSubject) -> None:
    """Files can be copied out while nothing inside runs."""
    async with subject.box() as box:
        await subject.put(box, "file", b"content")
        async with box.freeze():
            expect_equal(await subject.get(box, "file"), b"content", "the file")


@promise(lacks_freeze)
async def exec_by_the_holder_of_a_freeze_is_refused(subject: SandboxSubject) -> None:
    """`exec` inside the block raises SandboxFrozenError at once, instead of waiting forever."""
    async with subject.box() as box:
        async with box.freeze():
            call = box.exec("echo never", timeout=2)
            await expect_error(SandboxFrozenError, call, "exec under the own freeze")
        expect_equal(await subject.output(box, "echo on"), "on\n", "the next command")


@promise(_lacks_either)
async def snapshot_works_in_a_frozen_sandbox(subject: SandboxSubject) -> None:
    """A snapshot inside the block has the state of that moment. The sandbox stays frozen."""
    async with subject.box() as box:
        await subject.tick(box)
        async with box.freeze():
            held = await subject.ticks(box)
            image = await box.snapshot("filesystem")
            await subject.stands_still(box, "in a frozen sandbox after its snapshot")
        async with subject.box(image=image) as child:
            expect_equal(await subject.ticks(child), held, "the progress in the child")
        await subject.provider.discard(image)
        await subject.moves_on(box)


@promise(_lacks_either)
async def a_snapshot_is_of_the_instant_that_is_read(subject: SandboxSubject) -> None:
    """No process runs while `while_frozen` reads, and a child has exactly what it read."""
    seen: list[int] = []

    async def read() -> None:
        await subject.stands_still(box, "while a snapshot is read")
        seen.append(await subject.ticks(box))

    async with subject.box() as box:
        await subject.tick(box)
        image = await box.snapshot("filesystem", while_frozen=read)
        await subject.moves_on(box)
        async with subject.box(image=image) as child:
            expect_equal([await subject.ticks(child)], seen, "the progress in the child")
        await subject.provider.discard(image)


@promise(_lacks_either)
async def an_error_in_while_frozen_passes_through(subject: SandboxSubject) -> None:
    """The error of `while_frozen` is raised. The sandbox runs, and can be snapshot again."""

    async def read() -> None:
        raise KeyError("of the check")

    async with subject.box() as box:
        await subject.tick(box)
        for level in sorted(subject.capabilities.snapshot_levels):
            await expect_error(KeyError, box.snapshot(level, while_frozen=read), f"a {level!r} one")
            await subject.moves_on(box)
            async with subject.sealed(box, level):
                await subject.moves_on(box)


@promise(lacks_kill_all)
async def kill_all_ends_every_process_and_leaves_the_files(subject: SandboxSubject) -> None:
    """No process of the task runs afterwards, in any session. The sandbox stays usable."""
    async with subject.box() as box:
        expect(isinstance(box, SupportsKillAll), "capabilities claim kill_all")
        assert isinstance(box, SupportsKillAll)
        process = await box.spawn("sleep 60") if subject.capabilities.spawn else None
        await subject.tick(box)
        await box.kill_all()
        if process is not None:
            expect_equal(await process.wait(), 137, "the exit code of a killed process")
            await process.aclose()
        ticks = await subject.ticks(box)
        await subject.stands_still(box, "after kill_all")
        expect(ticks > 0, "the files are still there")
        await box.kill_all()
        expect_equal(await subject.output(box, "echo on"), "on\n", "the next command")


FREEZE_CHECKS: tuple[SandboxCheck, ...] = (
    freeze_holds_every_process_still,
    a_kernel_freeze_holds_the_background_of_root,
    freeze_is_reentrant,
    freeze_thaws_on_error,
    download_works_in_a_frozen_sandbox,
    exec_by_the_holder_of_a_freeze_is_refused,
    kill_all_ends_every_process_and_leaves_the_files,
    snapshot_works_in_a_frozen_sandbox,
    a_snapshot_is_of_the_instant_that_is_read,
    an_error_in_while_frozen_passes_through,
)
