"""Checks of who a sandbox's processes are, where, and what runs from its start."""

import asyncio
from pathlib import Path
from uuid import uuid4

from benchflow_contracts.bundle import Bundle
from benchflow_contracts.errors import SandboxUnsupportedError, TransferError
from benchflow_contracts.sandbox import Sandbox

from benchflow_testing.check import CheckSkippedError, expect, expect_equal, promise
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    lacks_snapshots,
    lacks_users,
    until,
)


@promise()
async def the_spec_has_the_values_of_the_image(subject: SandboxSubject) -> None:
    """With `user=""` and `workdir=""`, `spec` has the user and directory that commands get."""
    async with subject.box(spec=subject.specified(user="", workdir="")) as box:
        await _is_as_it_says(subject, box)


@promise(lacks_snapshots)
async def a_child_has_the_same_values_of_the_image(subject: SandboxSubject) -> None:
    """A sandbox from a snapshot has the user and directory that its parent took from the image."""
    spec = subject.specified(user="", workdir="")
    async with (
        subject.box(spec=spec) as box,
        subject.sealed(box) as image,
        subject.box(spec=spec, image=image) as child,
    ):
        found = (child.spec.user, child.spec.workdir)
        expect_equal(found, (box.spec.user, box.spec.workdir), "the child's user and workdir")
        await _is_as_it_says(subject, child)


async def _is_as_it_says(subject: SandboxSubject, box: Sandbox) -> None:
    user, workdir = box.spec.user, box.spec.workdir
    expect(user, "`Sandbox.spec.user` is empty instead of the image's user")
    expect(workdir.startswith("/"), f"`Sandbox.spec.workdir` is {workdir!r}, not an absolute path")
    name = f"kit-{uuid4().hex}"
    await box.upload(subject.file(b"here"), f"{workdir}/{name}", user=user)
    expect_equal(await subject.output(box, f"cat {name}"), "here", "the file in workdir")
    if subject.capabilities.users:
        ids = await subject.output(box, "id -un; id -u")
        known = user.partition(":")[0] in ids.split()
        expect(known, f"commands of user {user!r} run as {ids.split()}")


@promise()
async def a_bundle_is_shown_read_only(subject: SandboxSubject) -> None:
    """A process inside can read the files of a bundle. The host's files do not change."""
    file, target = subject.file(b"shown"), subject.inside("bundle")
    spec = subject.specified(bundles=(Bundle.of(file, Path(target)),))
    try:
        async with subject.box(spec=spec) as box:
            expect_equal(await subject.output(box, f"cat {target}"), "shown", "the file inside")
            await box.exec(f"echo changed > {target}", user="root")
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"not claimed: {error}") from error
    found = await asyncio.to_thread(file.read_bytes)
    expect_equal(found, b"shown", "the file of the host")


@promise(lacks_users)
async def a_missing_user_is_made(subject: SandboxSubject) -> None:
    """A user name that is not in the image can write to its own workdir."""
    spec = subject.specified(user="kituser", workdir=subject.inside("made/here"))
    async with subject.box(spec=spec) as box:
        expect_equal(await subject.output(box, "id -un"), "kituser\n", "the default user")
        expect_equal(await subject.output(box, "echo x > own; cat own"), "x\n", "its file")


@promise(lacks_users)
async def a_user_may_be_a_number(subject: SandboxSubject) -> None:
    """A number does not need a name, and can write to its own workdir."""
    spec = subject.specified(user="4321", workdir=subject.inside("made/here"))
    async with subject.box(spec=spec) as box:
        expect_equal(await subject.output(box, "id -u"), "4321\n", "the default user")
        expect_equal(await subject.output(box, "echo x > own; cat own"), "x\n", "its file")


@promise()
async def an_entrypoint_runs_once_from_the_start(subject: SandboxSubject) -> None:
    """It runs as root, with the spec's variables, beside the commands."""
    said = subject.inside("said")
    text = f'id -u >> {said}; echo "$GREETING" >> {said}'
    spec = subject.specified(entrypoint=("sh", "-c", text), env={"GREETING": "hello"})
    try:
        async with subject.box(spec=spec) as box:
            await _says(subject, box, said, "0\nhello\n" if subject.capabilities.users else "")
            expect_equal(await subject.output(box, "echo on"), "on\n", "the next command")
    except SandboxUnsupportedError as error:
        raise CheckSkippedError("not claimed: the provider runs no entrypoint") from error


async def _says(subject: SandboxSubject, box: Sandbox, path: str, wanted: str) -> None:
    found = ""

    async def ended() -> bool:
        nonlocal found
        local = subject.fresh()
        try:
            await box.download(path, local)
        except TransferError:
            return False
        found = local.read_text()
        return found.endswith("hello\n")

    await until(ended, "the entrypoint did not run")
    expect_equal(found, wanted or found, "what the entrypoint wrote")


SPEC_CHECKS: tuple[SandboxCheck, ...] = (
    the_spec_has_the_values_of_the_image,
    a_child_has_the_same_values_of_the_image,
    a_bundle_is_shown_read_only,
    a_missing_user_is_made,
    a_user_may_be_a_number,
    an_entrypoint_runs_once_from_the_start,
)
