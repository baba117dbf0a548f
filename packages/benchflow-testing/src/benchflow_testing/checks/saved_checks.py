"""Checks of `SandboxProvider.save` and `load`."""

import hashlib
import shutil
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage

from benchflow_testing.check import (
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_live_snapshots,
    lacks_snapshots,
)


@promise(lacks_snapshots)
async def a_saved_snapshot_outlives_the_snapshot(subject: SandboxSubject) -> None:
    """A saved snapshot can be loaded repeatedly after a discard of the original."""
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "echo kept > file; mkdir d; echo 1 > d/f")
        async with subject.sealed(sandbox) as image:
            saved = await save(subject, image)
        before = _digests(saved)
        images = [await subject.provider.load(saved) for _ in range(2)]
        expect_equal(_digests(saved), before, "what was saved, after loading")
        shutil.rmtree(saved)
        for loaded in images:
            expect_equal((loaded.level, loaded.digest), (image.level, image.digest), "the image")
            async with subject.open_sandbox(image=loaded) as child:
                expect_equal(await subject.output(child, "cat file d/f"), "kept\n1\n", "the files")
                await subject.output(child, "echo 2 > file")
            await subject.provider.discard(loaded)


@promise(lacks_live_snapshots)
async def a_saved_live_snapshot_continues(subject: SandboxSubject) -> None:
    """The processes of a live snapshot run in a sandbox from the loaded image."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(f"({TICKER}) </dev/null >/dev/null 2>&1 & echo started")
        before = await subject.wait_for_tick(sandbox)
        async with subject.sealed(sandbox, "live") as image:
            saved = await save(subject, image)
    loaded = await subject.provider.load(saved)
    expect_equal(loaded.level, "live", "the level")
    async with subject.open_sandbox(image=loaded) as child:
        expect(await subject.ticks(child) >= before, "the child began anew")
        await subject.wait_for_tick(child)
    await subject.provider.discard(loaded)
    shutil.rmtree(saved)


@promise(lacks_snapshots)
async def a_changed_saved_snapshot_is_refused(subject: SandboxSubject) -> None:
    """One wrong or missing byte raises SnapshotError; no image is returned."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "file", b"content " * 4096)
        async with subject.sealed(sandbox) as image:
            for change in (_flip, _cut):
                saved = await save(subject, image)
                change(max(_files(saved), key=lambda path: path.stat().st_size))
                await expect_error(SnapshotError, subject.provider.load(saved), "a changed one")
                shutil.rmtree(saved)


@promise(lacks_snapshots)
async def a_missing_saved_snapshot_is_not_loaded(subject: SandboxSubject) -> None:
    """A missing or an empty directory raises SnapshotError."""
    await expect_error(SnapshotError, subject.provider.load(subject.fresh()), "nothing")
    await expect_error(SnapshotError, subject.provider.load(subject.folder()), "no snapshot")


@promise(lacks_snapshots)
async def an_unknown_snapshot_is_not_saved(subject: SandboxSubject) -> None:
    """Saving a discarded snapshot raises SnapshotError and writes nothing."""
    async with subject.open_sandbox() as sandbox, subject.sealed(sandbox) as image:
        shutil.rmtree(await save(subject, image))
        await subject.provider.discard(image)
        to = subject.fresh()
        await expect_error(SnapshotError, subject.provider.save(image, to), "a discarded one")
        expect(not to.exists(), "something is at the target")


async def save(subject: SandboxSubject, image: SandboxImage) -> Path:
    """Save an image to a new directory; skip the check where `save` is not supported."""
    saved = subject.fresh()
    try:
        await subject.provider.save(image, saved)
    except SandboxUnsupportedError as error:
        raise CheckSkippedError("not claimed: the provider does not save snapshots") from error
    return saved


def _files(saved: Path) -> list[Path]:
    return sorted(path for path in saved.rglob("*") if path.is_file() and not path.is_symlink())


def _digests(saved: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in _files(saved)}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SAVED_CHECKS: tuple[SandboxCheck, ...] = (
    a_saved_snapshot_outlives_the_snapshot,
    a_saved_live_snapshot_continues,
    a_changed_saved_snapshot_is_refused,
    a_missing_saved_snapshot_is_not_loaded,
    an_unknown_snapshot_is_not_saved,
)
