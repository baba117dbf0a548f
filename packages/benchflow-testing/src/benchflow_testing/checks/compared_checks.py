"""Checks of `TracksFileChanges`: what the host knows of the files that changed."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from benchflow_contracts.changed_files import FileChanges, TracksFileChanges
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import Sandbox

from benchflow_testing.check import (
    CheckSkippedError,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    lacks_snapshots,
)

from .saved_checks import save


@promise()
async def what_came_before_the_mark_is_no_change(subject: SandboxSubject) -> None:
    """Files made, changed and removed before it are not named, whatever follows elsewhere."""
    async with subject.box() as box:
        compared = await _marked(subject, box, "mkdir d; echo 1 > d/f; echo 1 > g; rm g")
        expect_equal(await compared.changed_files(), FileChanges(), "what changed since the mark")


@promise()
async def what_came_after_the_mark_is_named(subject: SandboxSubject) -> None:
    """Each path once: made, written over or removed; what was made and removed is not there."""
    async with subject.box() as box:
        compared = await _marked(subject, box, "mkdir d; echo 1 > f; echo 1 > d/gone; echo 1 > h")
        await subject.output(box, "echo 2 > f; rm d/gone; echo 1 > d/new; echo 1 > no; rm no")
        expect_equal(await compared.changed_files(), _diff(subject), "what changed since the mark")
        expect_equal(await compared.changed_files(), _diff(subject), "what a second look says")


@promise()
async def where_links_lead_is_told(subject: SandboxSubject) -> None:
    """Of those made since the mark, and of none that was there before."""
    async with subject.box() as box:
        compared = await _marked(subject, box, "ln -s /tests old")
        await subject.output(box, "ln -s ../tests/x new")
        changes = await compared.changed_files()
        expect_equal(changes.added, (subject.inside("new"),), "what was made")
        expect_equal(dict(changes.links), {subject.inside("new"): "../tests/x"}, "the links")


@promise(lacks_snapshots)
async def a_child_compares_with_the_first_ones_mark(subject: SandboxSubject) -> None:
    """What its parent changed is named too, unless the child undid it; it takes no mark."""
    async with subject.box() as box:
        await _marked(subject, box, "mkdir d; echo 1 > f; echo 1 > d/gone")
        await subject.output(box, "echo 2 > f; echo 1 > d/later")
        async with subject.sealed(box) as image, subject.box(image=image) as child:
            await subject.output(child, "rm d/gone d/later; echo 1 > d/new")
            compared = _compared(child)
            expect_equal(
                await compared.changed_files(), _diff(subject), "what the child's line changed"
            )
            await expect_error(
                SandboxUnsupportedError, compared.set_baseline(), "a mark of a child"
            )


@promise(lacks_snapshots)
async def a_saved_snapshot_keeps_the_mark(subject: SandboxSubject) -> None:
    """What is made from it once it is loaded compares with the mark of the first one."""
    async with subject.box() as box:
        await _marked(subject, box, "mkdir d; echo 1 > f; echo 1 > d/gone; echo 1 > d/odd%41")
        await subject.output(box, "echo 2 > f; rm d/gone")
        async with subject.sealed(box) as image:
            saved = await save(subject, image)
    loaded = await subject.provider.load(saved)
    shutil.rmtree(saved)
    async with subject.box(image=loaded) as child:
        await subject.output(child, "echo 1 > d/new")
        expect_equal(
            await _compared(child).changed_files(), _diff(subject), "what the line changed"
        )
    await subject.provider.discard(loaded)


@promise()
async def what_is_ours_is_no_change(subject: SandboxSubject) -> None:
    """Nor is it one in what is made of it; what had changed before stays changed."""
    async with subject.box() as box:
        compared = await _marked(subject, box, "echo 1 > f; echo 1 > g")
        await subject.output(box, "echo 2 > f")
        async with _ours(compared):
            await subject.output(box, "echo 3 > f; rm g; echo 1 > mine")
        await subject.output(box, "echo 1 > new")
        inside = subject.inside
        expected = FileChanges(added=(inside("new"),), changed=(inside("f"),))
        expect_equal(await compared.changed_files(), expected, "what changed since the mark")


@promise()
async def nothing_is_ours_beside_a_process_of_another(subject: SandboxSubject) -> None:
    """It could write at the same time, and nobody could tell."""
    async with subject.box() as box:
        compared = await _marked(subject, box, "echo 1 > f")
        other = await box.spawn(["cat"])
        held = compared.ignore_changes()
        await expect_error(SandboxUnsupportedError, held.__aenter__(), "ours beside a process")
        await other.aclose()
        await subject.output(box, "echo 2 > f")
        changed = (subject.inside("f"),)
        expect_equal(
            (await compared.changed_files()).changed, changed, "what changed since the mark"
        )


@asynccontextmanager
async def _ours(compared: TracksFileChanges) -> AsyncGenerator[None, None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(compared.ignore_changes())
        except SandboxUnsupportedError as error:
            raise CheckSkippedError(f"nothing can be ours here: {error}") from error
        yield


@promise()
async def a_sandbox_without_a_mark_says_so(subject: SandboxSubject) -> None:
    """Nothing is compared with a guess."""
    async with subject.box() as box:
        call = _compared(box).changed_files()
        await expect_error(SandboxUnsupportedError, call, "comparing without a mark")
        held = _compared(box).ignore_changes()
        await expect_error(SandboxUnsupportedError, held.__aenter__(), "ours without a mark")


def _diff(subject: SandboxSubject) -> FileChanges:
    inside = subject.inside
    return FileChanges(
        added=(inside("d/new"),), removed=(inside("d/gone"),), changed=(inside("f"),)
    )


def _compared(box: Sandbox) -> TracksFileChanges:
    if not isinstance(box, TracksFileChanges):
        raise CheckSkippedError("the sandbox does not compare its files")
    return box


async def _marked(subject: SandboxSubject, box: Sandbox, first: str) -> TracksFileChanges:
    compared = _compared(box)
    await subject.output(box, first)
    try:
        await compared.set_baseline()
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"this sandbox cannot be marked: {error}") from error
    return compared


COMPARED_CHECKS: tuple[SandboxCheck, ...] = (
    what_came_before_the_mark_is_no_change,
    what_came_after_the_mark_is_named,
    where_links_lead_is_told,
    a_child_compares_with_the_first_ones_mark,
    a_saved_snapshot_keeps_the_mark,
    what_is_ours_is_no_change,
    nothing_is_ours_beside_a_process_of_another,
    a_sandbox_without_a_mark_says_so,
)
