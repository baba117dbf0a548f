"""Checks of the user and directory of processes, of bundles, and of the entrypoint."""

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
    async with subject.open_sandbox(spec=subject.spec_with(user="", workdir="")) as sandbox:
        await _is_as_it_says(subject, sandbox)


@promise(lacks_snapshots)
async def a_child_has_the_same_values_of_the_image(subject: SandboxSubject) -> None:
    """A sandbox from a snapshot has the user and directory that its parent took from the image."""
    spec = subject.spec_with(user="", workdir="")
    async with (
        subject.open_sandbox(spec=spec) as sandbox,
        subject.sealed(sandbox) as image,
        subject.open_sandbox(spec=spec, image=image) as child,
    ):
        found = (child.spec.user, child.spec.workdir)
        expect_equal(
            found, (sandbox.spec.user, sandbox.spec.workdir), "the child's user and workdir"
        )
        await _is_as_it_says(subject, child)


async def _is_as_it_says(subject: SandboxSubject, sandbox: Sandbox) -> None:
    user, workdir = sandbox.spec.user, sandbox.spec.workdir
    expect(user, "`Sandbox.spec.user` is empty instead of the image's user")
    expect(workdir.startswith("/"), f"`Sandbox.spec.workdir` is {workdir!r}, not an absolute path")
    name = f"kit-{uuid4().hex}"
    await sandbox.upload(subject.file(b"here"), f"{workdir}/{name}", user=user)
    expect_equal(await subject.output(sandbox, f"cat {name}"), "here", "the file in workdir")
    if subject.capabilities.users:
        ids = await subject.output(sandbox, "id -un; id -u")
        known = user.partition(":")[0] in ids.split()
        expect(known, f"commands of user {user!r} run as {ids.split()}")


@promise()
async def a_bundle_is_shown_read_only(subject: SandboxSubject) -> None:
    """A process inside can read the files of a bundle. The host's files do not change."""
    file, target = subject.file(b"shown"), subject.inside("bundle")
    spec = subject.spec_with(bundles=(Bundle.of(file, Path(target)),))
    try:
        async with subject.open_sandbox(spec=spec) as sandbox:
            expect_equal(await subject.output(sandbox, f"cat {target}"), "shown", "the file inside")
            await sandbox.exec(f"echo changed > {target}", user="root")
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"not claimed: {error}") from error
    found = await asyncio.to_thread(file.read_bytes)
    expect_equal(found, b"shown", "the file of the host")


@promise(lacks_users)
async def a_missing_user_is_made(subject: SandboxSubject) -> None:
    """A user name that is not in the image can write to its own workdir."""
    spec = subject.spec_with(user="kituser", workdir=subject.inside("made/here"))
    async with subject.open_sandbox(spec=spec) as sandbox:
        expect_equal(await subject.output(sandbox, "id -un"), "kituser\n", "the default user")
        expect_equal(await subject.output(sandbox, "echo x > own; cat own"), "x\n", "its file")


@promise(lacks_users)
async def a_user_may_be_a_number(subject: SandboxSubject) -> None:
    """A number does not need a name, and can write to its own workdir."""
    spec = subject.spec_with(user="4321", workdir=subject.inside("made/here"))
    async with subject.open_sandbox(spec=spec) as sandbox:
        expect_equal(await subject.output(sandbox, "id -u"), "4321\n", "the default user")
        expect_equal(await subject.output(sandbox, "echo x > own; cat own"), "x\n", "its file")


@promise()
async def an_entrypoint_runs_once_from_the_start(subject: SandboxSubject) -> None:
    """The entrypoint runs as root, with the spec's variables, beside the commands."""
    said = subject.inside("said")
    text = f'id -u >> {said}; echo "$GREETING" >> {said}'
    spec = subject.spec_with(entrypoint=("sh", "-c", text), env={"GREETING": "hello"})
    try:
        async with subject.open_sandbox(spec=spec) as sandbox:
            await _says(subject, sandbox, said, "0\nhello\n" if subject.capabilities.users else "")
            expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")
    except SandboxUnsupportedError as error:
        raise CheckSkippedError("not claimed: the provider does not run entrypoints") from error


async def _says(subject: SandboxSubject, sandbox: Sandbox, path: str, wanted: str) -> None:
    found = ""

    async def ended() -> bool:
        nonlocal found
        local = subject.fresh()
        try:
            await sandbox.download(path, local)
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
