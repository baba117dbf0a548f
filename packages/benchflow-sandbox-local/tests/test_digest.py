"""Digests of files in a box that runs on."""

import hashlib

import pytest
from benchflow_contracts.errors import TransferError
from benchflow_contracts.sandbox import SandboxSpec, SupportsFileDigests


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def until_refused(sandbox):
    while True:  # a writer may not get to run beside one reading
        await sandbox.file_digests(["/workspace/busy"])


def test_files_are_digested_in_place_and_missing_ones_left_out(with_box):
    async def check(sandbox):
        assert isinstance(sandbox, SupportsFileDigests)
        await sandbox.exec("printf one > a; printf two > b; : > empty")
        paths = [f"/workspace/{name}" for name in ("a", "b", "empty", "none", "none/below")]
        assert await sandbox.file_digests(paths) == {
            "/workspace/a": sha256("one"),
            "/workspace/b": sha256("two"),
            "/workspace/empty": sha256(""),
        }

    with_box(check)


@pytest.mark.parametrize("plant", ["ln -s /etc/passwd odd", "mkfifo odd", "mkdir odd"])
def test_what_is_no_regular_file_is_refused(with_box, plant):
    async def check(sandbox):
        await sandbox.exec(plant)
        with pytest.raises(TransferError, match="odd"):
            await sandbox.file_digests(["/workspace/odd"])

    with_box(check)


def test_a_link_on_the_way_that_the_agent_made_is_refused(with_box):
    async def check(sandbox):
        await sandbox.exec("ln -s /etc there")
        with pytest.raises(TransferError, match="there"):
            await sandbox.file_digests(["/workspace/there/passwd"])

    with_box(check)


def test_more_than_the_cap_is_refused(with_box):
    async def check(sandbox):
        await sandbox.exec("printf 12345 > a; printf 67890 > b")
        paths = ["/workspace/a", "/workspace/b"]
        assert len(await sandbox.file_digests(paths, max_bytes=10)) == 2
        with pytest.raises(TransferError, match="limit"):
            await sandbox.file_digests(paths, max_bytes=9)

    with_box(check)


def test_a_file_that_changes_while_it_is_read_is_refused(with_box):
    async def check(sandbox):
        await sandbox.exec("head -c 20000000 /dev/zero > busy")
        writer = await sandbox.spawn("while :; do printf x | dd of=busy conv=notrunc 2>&1; done")
        await writer.stdout.read()
        with pytest.raises(TransferError, match="changed while"):
            await until_refused(sandbox)

    with_box(check)


def test_a_child_s_change_shows_whatever_its_siblings_were_told(with_provider):
    """Also one that keeps the size, and the time that anybody can set."""

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        await parent.exec("printf one > a; printf two > b; touch -d @1000000000 a b")
        image = await parent.snapshot()
        paths = ["/workspace/a", "/workspace/b"]
        told = {"/workspace/a": sha256("one"), "/workspace/b": sha256("two")}
        for _ in range(2):
            child = await provider.create(SandboxSpec(), image=image)
            assert await child.file_digests(paths) == told
            await child.exec("printf ONE > a; touch -d @1000000000 a; rm b; printf TWO > b")
            changed = {"/workspace/a": sha256("ONE"), "/workspace/b": sha256("TWO")}
            assert await child.file_digests(paths) == changed
            await child.restore(image)
            assert await child.file_digests(paths) == told
            await child.teardown()
        assert await parent.file_digests(paths) == told

    with_provider(check)
