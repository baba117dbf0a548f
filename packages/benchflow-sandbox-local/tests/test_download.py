# Names are looked at as the kernel has them.
# ruff: noqa: PTH208

import asyncio
import os

import pytest
from benchflow_contracts.errors import TransferError


def test_a_tree_comes_out_as_plain_files(with_box, tmp_path):
    async def check(sandbox):
        await sandbox.exec(
            "mkdir -p o/a/b; printf deep > o/a/b/f; printf run > o/x; chmod 4755 o/x; mkdir o/e"
        )
        await sandbox.download("/workspace/o", tmp_path / "out" / "o")
        got = tmp_path / "out" / "o"
        assert (got / "a" / "b" / "f").read_text() == "deep"
        assert (got / "x").stat().st_mode & 0o7777 == 0o755
        assert (got / "a" / "b" / "f").stat().st_uid == os.getuid()
        assert list((got / "e").iterdir()) == []
        await sandbox.download("/bin/sh", tmp_path / "sh")

    # /bin/sh is a link to another program: its own last name is a link, so it is refused.
    with pytest.raises(TransferError, match="/bin/sh"):
        with_box(check)


def test_one_file_comes_out_through_the_images_links(with_box, tmp_path):
    async def check(sandbox):
        await sandbox.exec("echo x > /run/file", user="root")
        await sandbox.download("/var/run/file", tmp_path / "file")
        assert (tmp_path / "file").read_text() == "x\n"

    with_box(check)


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc/passwd o/odd",
        "mkfifo o/odd",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"o/odd\")'",
    ],
)
def test_what_is_not_a_file_or_directory_is_refused_whole(with_box, tmp_path, plant):
    async def check(sandbox):
        await sandbox.exec(f"mkdir -p o/a; echo x > o/a/f; {plant}")
        for path in ("/workspace/o", "/workspace/o/odd"):
            with pytest.raises(TransferError, match="odd"):
                await sandbox.download(path, tmp_path / "out")
            assert os.listdir(tmp_path) == ["store"]

    with_box(check)


def test_a_device_is_refused_without_being_opened(with_box, tmp_path):
    async def check(sandbox):
        for path in ("/dev/zero", "/dev/tty", "/dev"):
            with pytest.raises(TransferError):
                await sandbox.download(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    with_box(check)


def test_a_link_of_the_agent_leads_nowhere(with_box, tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("canary")

    async def check(sandbox):
        await sandbox.exec(f"ln -s {tmp_path}/host link; ln -s /proc/1/root up; ln -s . loop")
        for path in ("link/secret", "link", "up/etc/passwd", "loop/loop/link"):
            with pytest.raises(TransferError):
                await sandbox.download(f"/workspace/{path}", tmp_path / "out")

    with_box(check)


@pytest.mark.parametrize("path", ["../etc", "/workspace/../etc/passwd", "etc/passwd"])
def test_a_path_that_climbs_is_refused(with_box, tmp_path, path):
    async def check(sandbox):
        with pytest.raises(TransferError):
            await sandbox.download(path, tmp_path / "out")

    with_box(check)


def test_size_and_count_are_capped_before_they_cost(with_box, tmp_path):
    async def check(sandbox):
        await sandbox.exec(
            "mkdir big many; truncate -s 1T big/sparse; seq 1 3000 | sed 's,^,many/,' | xargs touch"
        )
        with pytest.raises(TransferError, match="limit"):
            await sandbox.download("/workspace/big", tmp_path / "out")
        await sandbox.exec("head -c 3000 /dev/zero > big/one; truncate -s 3000 big/sparse")
        with pytest.raises(TransferError, match="limit"):
            await sandbox.download("/workspace/big", tmp_path / "out", max_bytes=5000)
        await sandbox.download("/workspace/big", tmp_path / "out", max_bytes=6000)
        await sandbox.exec("d=deep; for i in $(seq 80); do d=$d/x; done; mkdir -p $d")
        with pytest.raises(TransferError, match="levels"):
            await sandbox.download("/workspace/deep", tmp_path / "deep")
        await sandbox.download("/workspace/many", tmp_path / "many")
        assert len(os.listdir(tmp_path / "many")) == 3000

    with_box(check)


def test_proc_is_not_part_of_the_files(with_box, tmp_path):
    async def check(sandbox):
        for path in ("/proc", "/proc/version", "/"):
            with pytest.raises(TransferError):
                await sandbox.download(path, tmp_path / "out")

    with_box(check)


def test_names_that_are_not_text_survive(with_box, tmp_path):
    async def check(sandbox):
        await sandbox.exec(["python3", "-c", "import os; os.mkdir(b'o'); open(b'o/\\xff\\n', 'w')"])
        await sandbox.download("/workspace/o", tmp_path / "out")
        assert os.listdir(os.fsencode(tmp_path / "out")) == [b"\xff\n"]

    with_box(check)


def test_a_swap_of_a_directory_for_a_link_never_shows_another_file(with_box, tmp_path):
    swap = """
import os, threading
os.mkdir("real"); open("real/passwd", "w").write("mine")
os.symlink("/etc", "link")
print("ready", flush=True)
while True:
    os.rename("real", "d") if not os.path.lexists("d") else None
    os.rename("d", "real"); os.rename("link", "d"); os.rename("d", "link")
"""

    async def check(sandbox):
        process = await sandbox.spawn(["python3", "-I", "-c", swap])
        assert await process.stdout.read() == b"ready\n"
        for number in range(300):
            target = tmp_path / f"got{number}"
            try:
                await sandbox.download("/workspace/d/passwd", target)
            except TransferError:
                continue
            assert target.read_text() == "mine"
        await process.aclose()

    with_box(check)


def test_it_works_while_the_box_is_frozen(with_box, tmp_path):
    async def check(sandbox):
        await sandbox.exec("echo still > file")
        async with sandbox.freeze(), asyncio.timeout(10):
            await sandbox.download("/workspace/file", tmp_path / "file")
        assert (tmp_path / "file").read_text() == "still\n"

    with_box(check)


def test_an_existing_target_is_not_overwritten(with_box, tmp_path):
    (tmp_path / "mine").write_text("mine")

    async def check(sandbox):
        await sandbox.exec("echo x > file")
        with pytest.raises(TransferError, match="exists"):
            await sandbox.download("/workspace/file", tmp_path / "mine")
        with pytest.raises(TransferError, match="absent"):
            await sandbox.download("/workspace/absent", tmp_path / "new")

    with_box(check)
    assert (tmp_path / "mine").read_text() == "mine"
