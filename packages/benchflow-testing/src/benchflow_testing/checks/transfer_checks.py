"""Checks of `Sandbox.upload` and `Sandbox.download`."""

import contextlib
import os
import random
from pathlib import Path

from benchflow_contracts.errors import SandboxError, TransferError

from benchflow_testing.check import expect, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import SandboxCheck, SandboxSubject, lacks_users

_NAMES = ("a b", "naïve ☃", "..data", "...", "-rf", "it's", '"', "$HOME", "*", "line\nbreak")


def _left_nothing(local: Path) -> None:
    expect(not os.path.lexists(local), "a refused download left something on the host")


@promise()
async def a_file_is_unchanged_after_upload_and_download(subject: SandboxSubject) -> None:
    """Three megabytes of random bytes and an empty file are unchanged after both copies."""
    noise = random.Random(8).randbytes(3 << 20)  # noqa: S311 - any bytes will do
    async with subject.open_sandbox() as sandbox:
        for name, content in (("noise", noise), ("empty", b"")):
            await subject.put(sandbox, name, content)
            expect(await subject.get(sandbox, name) == content, f"the file {name!r} was changed")
        expect_equal((await sandbox.exec("wc -c < noise")).stdout.strip(), str(3 << 20), "the size")


@promise()
async def upload_makes_parents_and_replaces_files(subject: SandboxSubject) -> None:
    """Missing directories are created; an existing file gets the new content."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "x/y/z/file", b"a longer first content")
        await subject.put(sandbox, "x/y/z/file", b"second")
        expect_equal(await subject.output(sandbox, "cat x/y/z/file"), "second", "the file")


@promise()
async def upload_merges_a_tree_into_a_directory(subject: SandboxSubject) -> None:
    """The directory's contents are copied into `remote`. Existing files stay."""
    tree = subject.folder()
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "sub" / "new").write_bytes(b"new")
    (tree / "both").write_bytes(b"after")
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "into/both", b"before")
        await subject.put(sandbox, "into/sub/old", b"old")
        await sandbox.upload(tree, subject.inside("into"), user=subject.spec.user)
        found = await subject.output(sandbox, "cat into/both into/sub/old into/sub/new")
        expect_equal(found, "afteroldnew", "the merged files")
        await subject.output(sandbox, "test -d into/sub/empty")


@promise()
async def upload_makes_a_directory_that_all_can_enter(subject: SandboxSubject) -> None:
    """`remote` has default permissions, even if `local` is closed on the host."""
    tree = subject.folder()
    tree.chmod(0o700)
    (tree / "file").write_text("read")
    async with subject.open_sandbox() as sandbox:
        await sandbox.upload(tree, subject.inside("made"))
        listed = (await subject.output(sandbox, "ls -ld made")).split()
        expect(listed[0].startswith("drwxr-xr-x"), f"the directory is {listed[0]}")
        expect_equal(await subject.output(sandbox, "cat made/file"), "read", "the file")


@promise()
async def upload_keeps_the_executable_bit(subject: SandboxSubject) -> None:
    """A program can be executed after the upload; a plain file cannot."""
    tree = subject.folder()
    for name, mode in (("tool", 0o755), ("data", 0o644)):
        (tree / name).write_text("#!/bin/sh\necho ran\n")
        (tree / name).chmod(mode)
    async with subject.open_sandbox() as sandbox:
        await sandbox.upload(tree, subject.inside("bin"), user=subject.spec.user)
        expect_equal(await subject.output(sandbox, "./bin/tool"), "ran\n", "the program's output")
        expect((await sandbox.exec("test -x bin/data")).exit_code != 0, "a plain file can be run")


@promise(lacks_users)
async def upload_gives_files_to_the_given_user(subject: SandboxSubject) -> None:
    """The default owner is root, so the agent cannot change the files."""
    tree = subject.folder()
    (tree / "file").write_bytes(b"x")
    async with subject.open_sandbox() as sandbox:
        await sandbox.upload(tree, subject.inside("given"))
        await sandbox.upload(tree, subject.inside("own"), user=subject.spec.user)
        for folder, owner in (("given", "root"), ("own", subject.spec.user)):
            for path in (folder, f"{folder}/file"):
                listed = (await subject.output(sandbox, f"ls -ld {path}")).split()
                expect_equal(listed[2], owner, f"the owner of {path!r}")
        expect(
            (await sandbox.exec("echo y > given/file")).exit_code != 0, "root's file was changed"
        )
        await subject.output(sandbox, "echo y > own/file; echo z > own/more")


@promise()
async def unusual_names_are_only_names(subject: SandboxSubject) -> None:
    """Names with spaces, quotes, dashes, dots, line breaks and Unicode work both ways."""
    tree = subject.folder()
    for name in _NAMES:
        (tree / name).write_text(name, encoding="utf-8")
    async with subject.open_sandbox() as sandbox:
        await sandbox.upload(tree, subject.inside("odd dir"), user=subject.spec.user)
        local = subject.fresh()
        await sandbox.download(subject.inside("odd dir"), local)
        found = {path.name: path.read_text(encoding="utf-8") for path in local.iterdir()}
        expect_equal(found, {name: name for name in _NAMES}, "the files that came back")


@promise()
async def upload_refuses_links(subject: SandboxSubject) -> None:
    """A symbolic link, alone or in a tree, is refused, and nothing is copied."""
    secret = subject.file(b"of the host")
    tree = subject.folder()
    (tree / "plain").write_bytes(b"plain")
    (tree / "zlink").symlink_to(secret)
    async with subject.open_sandbox() as sandbox:
        for local in (tree / "zlink", tree):
            call = sandbox.upload(local, subject.inside("taken"))
            await expect_error(TransferError, call, "uploading a link")
        expect((await sandbox.exec("test -e taken")).exit_code != 0, "a part was copied")


@promise()
async def upload_refuses_pipes_and_missing_files(subject: SandboxSubject) -> None:
    """A named pipe and a missing path are refused at once."""
    tree = subject.folder()
    os.mkfifo(tree / "pipe")
    async with subject.open_sandbox() as sandbox:
        for local in (tree / "pipe", tree, subject.fresh()):
            call = sandbox.upload(local, subject.inside("taken"))
            await expect_error(TransferError, call, f"uploading {local.name!r}")


@promise()
async def download_copies_a_tree(subject: SandboxSubject) -> None:
    """A directory is copied with all its contents, also empty directories."""
    async with subject.open_sandbox() as sandbox:
        await subject.output(
            sandbox, "mkdir -p out/a/b out/none; echo 1 > out/f; echo 2 > out/a/b/g"
        )
        local = subject.fresh()
        await sandbox.download(subject.inside("out"), local)
        found = {
            path.relative_to(local).as_posix(): path.read_text() if path.is_file() else None
            for path in local.rglob("*")
        }
        wanted = {"f": "1\n", "a": None, "a/b": None, "a/b/g": "2\n", "none": None}
        expect_equal(found, wanted, "the tree")


@promise()
async def download_of_a_missing_path_is_an_error(subject: SandboxSubject) -> None:
    """A missing path raises TransferError and creates nothing on the host."""
    local = subject.fresh()
    async with subject.open_sandbox() as sandbox:
        call = sandbox.download(subject.inside("absent"), local)
        await expect_error(TransferError, call, "downloading a missing path")
    _left_nothing(local)


@promise()
async def download_refuses_links(subject: SandboxSubject) -> None:
    """A link is not followed and not copied, alone or in a tree. Nothing is left on the host."""
    secret = subject.file(b"of the host")
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "mkdir out; echo 1 > out/a")
        await sandbox.exec(["ln", "-s", str(secret), "out/link"])
        await sandbox.exec(["ln", "-s", "a", "out/near"])
        for name in ("out/link", "out/near", "out"):
            local = subject.fresh()
            call = sandbox.download(subject.inside(name), local)
            await expect_error(TransferError, call, f"downloading {name!r}")
            _left_nothing(local)


@promise()
async def download_refuses_pipes(subject: SandboxSubject) -> None:
    """A named pipe is refused at once; the download does not wait for it."""
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "mkdir out; mkfifo out/pipe")
        for name in ("out/pipe", "out"):
            local = subject.fresh()
            call = sandbox.download(subject.inside(name), local)
            await expect_error(TransferError, call, f"downloading {name!r}")
            _left_nothing(local)


@promise()
async def leave_out_skips_links_and_pipes(subject: SandboxSubject) -> None:
    """With `leave_out`, links and pipes of a tree are skipped, and the rest is copied."""
    secret = subject.file(b"of the host")
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "mkdir -p out/sub; echo 1 > out/a; mkfifo out/pipe")
        await sandbox.exec(["ln", "-s", str(secret), "out/sub/link"])
        local = subject.fresh()
        await sandbox.download(subject.inside("out"), local, leave_out=True)
        found = sorted(path.relative_to(local).as_posix() for path in local.rglob("*"))
        expect_equal(found, ["a", "sub"], "the tree")
        local = subject.fresh()
        call = sandbox.download(subject.inside("out/sub/link"), local, leave_out=True)
        await expect_error(TransferError, call, "downloading a link by its own name")
        _left_nothing(local)


@promise()
async def download_stops_at_its_cap(subject: SandboxSubject) -> None:
    """More than `max_bytes`, in one file or in total, leaves nothing on the host."""
    async with subject.open_sandbox() as sandbox:
        for name in ("out/a", "out/b"):
            await subject.put(sandbox, name, b"x" * 6000)
        for name, cap in (("out/a", 5999), ("out", 11_999)):
            local = subject.fresh()
            call = sandbox.download(subject.inside(name), local, max_bytes=cap)
            await expect_error(TransferError, call, f"downloading {name!r} over its cap")
            _left_nothing(local)
        await sandbox.download(subject.inside("out"), subject.fresh(), max_bytes=12_000)


@promise()
async def a_linked_parent_does_not_lead_to_the_host(subject: SandboxSubject) -> None:
    """A directory link to a host path cannot be used to read or write the host."""
    trap = subject.folder()
    (trap / "secret").write_bytes(b"of the host")
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec(["ln", "-s", str(trap), "trap"])
        local = subject.fresh()
        try:
            await sandbox.download(subject.inside("trap/secret"), local)
        except SandboxError:
            _left_nothing(local)
        else:
            expect(local.read_bytes() != b"of the host", "a host file was downloaded")
        # Either outcome is right inside; only the host must not change.
        with contextlib.suppress(SandboxError):
            await subject.put(sandbox, "trap/planted", b"planted")
        expect_equal([path.name for path in trap.iterdir()], ["secret"], "the host directory")


TRANSFER_CHECKS: tuple[SandboxCheck, ...] = (
    a_file_is_unchanged_after_upload_and_download,
    upload_makes_parents_and_replaces_files,
    upload_merges_a_tree_into_a_directory,
    upload_makes_a_directory_that_all_can_enter,
    upload_keeps_the_executable_bit,
    upload_gives_files_to_the_given_user,
    unusual_names_are_only_names,
    upload_refuses_links,
    upload_refuses_pipes_and_missing_files,
    download_copies_a_tree,
    download_of_a_missing_path_is_an_error,
    download_refuses_links,
    download_refuses_pipes,
    leave_out_skips_links_and_pipes,
    download_stops_at_its_cap,
    a_linked_parent_does_not_lead_to_the_host,
)
