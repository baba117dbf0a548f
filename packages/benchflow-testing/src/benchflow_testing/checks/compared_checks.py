"""Checks of `TracksFileChanges`: the changed files that the provider reports."""

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
async def changes_before_the_baseline_are_not_reported(subject: SandboxSubject) -> None:
    """Files created, changed or removed before the baseline are not in the result."""
    async with subject.open_sandbox() as sandbox:
        compared = await _with_baseline(subject, sandbox, "mkdir d; echo 1 > d/f; echo 1 > g; rm g")
        expect_equal(
            await compared.changed_files(), FileChanges(), "the changes since the baseline"
        )


@promise()
async def changes_after_the_baseline_are_reported(subject: SandboxSubject) -> None:
    """Each created, changed or removed path is in the result once.

    A file that was created and then removed is not in the result.
    """
    async with subject.open_sandbox() as sandbox:
        compared = await _with_baseline(
            subject, sandbox, "mkdir d; echo 1 > f; echo 1 > d/gone; echo 1 > h"
        )
        await subject.output(sandbox, "echo 2 > f; rm d/gone; echo 1 > d/new; echo 1 > no; rm no")
        expect_equal(
            await compared.changed_files(), _diff(subject), "the changes since the baseline"
        )
        expect_equal(await compared.changed_files(), _diff(subject), "the changes in a second call")


@promise()
async def changed_links_have_their_targets(subject: SandboxSubject) -> None:
    """Links since the baseline are in the result, with their targets. Older ones are not."""
    async with subject.open_sandbox() as sandbox:
        compared = await _with_baseline(subject, sandbox, "ln -s /tests old")
        await subject.output(sandbox, "ln -s ../tests/x new")
        changes = await compared.changed_files()
        expect_equal(changes.added, (subject.inside("new"),), "the added paths")
        expect_equal(dict(changes.links), {subject.inside("new"): "../tests/x"}, "the links")


@promise(lacks_snapshots)
async def a_child_compares_with_the_first_baseline(subject: SandboxSubject) -> None:
    """Changes of the parent are in the child's result, unless the child reverted them.

    A child cannot set a baseline.
    """
    async with subject.open_sandbox() as sandbox:
        await _with_baseline(subject, sandbox, "mkdir d; echo 1 > f; echo 1 > d/gone")
        await subject.output(sandbox, "echo 2 > f; echo 1 > d/later")
        async with subject.sealed(sandbox) as image, subject.open_sandbox(image=image) as child:
            await subject.output(child, "rm d/gone d/later; echo 1 > d/new")
            compared = _compared(child)
            expect_equal(
                await compared.changed_files(),
                _diff(subject),
                "the changes of the child and its parent",
            )
            await expect_error(
                SandboxUnsupportedError, compared.set_baseline(), "a baseline of a child"
            )


@promise(lacks_snapshots)
async def a_saved_snapshot_keeps_the_baseline(subject: SandboxSubject) -> None:
    """A sandbox from the loaded snapshot compares with the baseline of the first sandbox."""
    async with subject.open_sandbox() as sandbox:
        await _with_baseline(
            subject, sandbox, "mkdir d; echo 1 > f; echo 1 > d/gone; echo 1 > d/odd%41"
        )
        await subject.output(sandbox, "echo 2 > f; rm d/gone")
        async with subject.sealed(sandbox) as image:
            saved = await save(subject, image)
    loaded = await subject.provider.load(saved)
    shutil.rmtree(saved)
    async with subject.open_sandbox(image=loaded) as child:
        await subject.output(child, "echo 1 > d/new")
        expect_equal(
            await _compared(child).changed_files(),
            _diff(subject),
            "the changes of the child and its parent",
        )
    await subject.provider.discard(loaded)


@promise()
async def ignored_changes_are_not_reported(subject: SandboxSubject) -> None:
    """Ignored changes are not reported in children either. Earlier changes are."""
    async with subject.open_sandbox() as sandbox:
        compared = await _with_baseline(subject, sandbox, "echo 1 > f; echo 1 > g")
        await subject.output(sandbox, "echo 2 > f")
        async with _ignoring(compared):
            await subject.output(sandbox, "echo 3 > f; rm g; echo 1 > mine")
        await subject.output(sandbox, "echo 1 > new")
        inside = subject.inside
        expected = FileChanges(added=(inside("new"),), changed=(inside("f"),))
        expect_equal(await compared.changed_files(), expected, "the changes since the baseline")


@promise()
async def changes_are_reported_beside_another_process(subject: SandboxSubject) -> None:
    """`ignore_changes` raises an error while another process runs, and ignores nothing."""
    async with subject.open_sandbox() as sandbox:
        compared = await _with_baseline(subject, sandbox, "echo 1 > f")
        other = await sandbox.spawn(["cat"])
        block = compared.ignore_changes()
        await expect_error(
            SandboxUnsupportedError, block.__aenter__(), "ignore_changes beside a process"
        )
        await other.aclose()
        await subject.output(sandbox, "echo 2 > f")
        changed = (subject.inside("f"),)
        expect_equal(
            (await compared.changed_files()).changed, changed, "the changes since the baseline"
        )


@asynccontextmanager
async def _ignoring(compared: TracksFileChanges) -> AsyncGenerator[None, None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(compared.ignore_changes())
        except SandboxUnsupportedError as error:
            raise CheckSkippedError(f"changes cannot be ignored here: {error}") from error
        yield


@promise()
async def comparing_without_a_baseline_is_an_error(subject: SandboxSubject) -> None:
    """`changed_files` and `ignore_changes` raise an error before `set_baseline`."""
    async with subject.open_sandbox() as sandbox:
        call = _compared(sandbox).changed_files()
        await expect_error(SandboxUnsupportedError, call, "changed_files without a baseline")
        block = _compared(sandbox).ignore_changes()
        await expect_error(
            SandboxUnsupportedError, block.__aenter__(), "ignore_changes without a baseline"
        )


def _diff(subject: SandboxSubject) -> FileChanges:
    inside = subject.inside
    return FileChanges(
        added=(inside("d/new"),), removed=(inside("d/gone"),), changed=(inside("f"),)
    )


def _compared(sandbox: Sandbox) -> TracksFileChanges:
    if not isinstance(sandbox, TracksFileChanges):
        raise CheckSkippedError("the sandbox does not compare its files")
    return sandbox


async def _with_baseline(
    subject: SandboxSubject, sandbox: Sandbox, first: str
) -> TracksFileChanges:
    compared = _compared(sandbox)
    await subject.output(sandbox, first)
    try:
        await compared.set_baseline()
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"this sandbox cannot set a baseline: {error}") from error
    return compared


COMPARED_CHECKS: tuple[SandboxCheck, ...] = (
    changes_before_the_baseline_are_not_reported,
    changes_after_the_baseline_are_reported,
    changed_links_have_their_targets,
    a_child_compares_with_the_first_baseline,
    a_saved_snapshot_keeps_the_baseline,
    ignored_changes_are_not_reported,
    changes_are_reported_beside_another_process,
    comparing_without_a_baseline_is_an_error,
)
