import os
import socket

import pytest
from benchflow_contracts.errors import SandboxLimitError, TransferError
from benchflow_contracts.limits import ResourceLimits


def make_tree(root):
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "deep.txt").write_text("deep")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "empty").mkdir()
    return root


def test_a_tree_arrives_with_modes_and_owner(with_box, tmp_path):
    tree = make_tree(tmp_path / "tree")

    async def check(sandbox):
        await sandbox.upload(tree, "/data/in", user="agent")
        listed = await sandbox.exec("cd /data/in && find . -printf '%p %U %m\\n' | sort")
        uid = (await sandbox.exec("id -u")).stdout.strip()
        assert f"./a/b/deep.txt {uid} 644" in listed.stdout.splitlines()
        assert f"./empty {uid} 755" in listed.stdout.splitlines()
        assert (await sandbox.exec("/data/in/run.sh")).stdout == "ran\n"

    with_box(check)


def test_a_directory_is_merged_and_a_file_replaced(with_box, tmp_path):
    tree = make_tree(tmp_path / "tree")

    async def check(sandbox):
        await sandbox.exec(
            "mkdir -p /opt/x/a; echo keep > /opt/x/a/kept; echo old > /opt/x/run.sh", user="root"
        )
        await sandbox.upload(tree, "/opt/x")
        result = await sandbox.exec(
            "cat /opt/x/a/kept /opt/x/a/b/deep.txt; stat -c %U /opt/x/run.sh"
        )
        assert result.stdout == "keep\ndeeproot\n"

    with_box(check)


def test_the_links_of_the_image_are_followed(with_box, tmp_path):
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho tool\n")
    program.chmod(0o755)

    async def check(sandbox):
        await sandbox.upload(program, "/bin/tool")
        await sandbox.upload(program, "/var/run/tool")
        assert (await sandbox.exec(["/usr/bin/tool"])).stdout == "tool\n"
        assert (await sandbox.exec(["/run/tool"])).stdout == "tool\n"

    with_box(check)


def test_a_link_of_the_agent_is_never_followed(with_box, tmp_path):
    local = tmp_path / "file"
    local.write_text("new\n")
    host = tmp_path / "host"
    host.mkdir()

    async def check(sandbox):
        await sandbox.exec(
            f"ln -s /etc there; ln -s /etc/passwd passwd; ln -s {host} out; mkdir real"
        )
        before = (await sandbox.exec("cat /etc/passwd")).stdout
        for path in ("there/new", "passwd", "out/new", "there/passwd"):
            with pytest.raises(TransferError):
                await sandbox.upload(local, f"/workspace/{path}")
        with pytest.raises(TransferError):
            await sandbox.upload(host, "/workspace/there")
        assert (await sandbox.exec("cat /etc/passwd")).stdout == before
        assert not (await sandbox.exec("test -e /etc/new")).ok
        assert list(host.iterdir()) == []

    with_box(check)


def test_a_link_inside_an_uploaded_tree_cannot_lead_elsewhere(with_box, tmp_path):
    tree = make_tree(tmp_path / "tree")

    async def check(sandbox):
        await sandbox.exec("mkdir in; ln -s /etc in/a")
        with pytest.raises(TransferError, match="in/a"):
            await sandbox.upload(tree, "/workspace/in")
        assert not (await sandbox.exec("test -e /etc/b")).ok
        assert (await sandbox.exec("ls in")).stdout == "a\n"

    with_box(check)


@pytest.mark.parametrize("kind", ["link", "fifo", "socket", "device"])
def test_only_files_and_directories_go_in(with_box, tmp_path, kind):
    tree = make_tree(tmp_path / "tree")
    odd = tree / "a" / "odd"
    if kind == "link":
        odd.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(odd)
    elif kind == "device":
        os.mknod(odd, 0o20600, os.makedev(1, 3))
    else:
        os.chdir(tree / "a")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("odd")

    async def check(sandbox):
        with pytest.raises(TransferError, match="odd"):
            await sandbox.upload(tree, "/workspace/in")
        assert (await sandbox.exec("ls -A")).stdout == ""

    with_box(check)


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a\0b", ""])
def test_a_path_that_is_not_plain_is_refused(with_box, tmp_path, path):
    local = tmp_path / "file"
    local.write_text("x")

    async def check(sandbox):
        with pytest.raises(TransferError):
            await sandbox.upload(local, path)

    with_box(check)


def test_what_does_not_fit_leaves_nothing_partial(with_box, tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / "z").write_bytes(os.urandom(20_000_000))

    async def check(sandbox):
        with pytest.raises(SandboxLimitError, match="disk is full"):
            await sandbox.upload(tree, "/workspace/in")
        assert (await sandbox.exec("find . -mindepth 1")).stdout == ""
        assert (await sandbox.exec("echo fits > file && cat file")).stdout == "fits\n"

    with_box(check, limits=ResourceLimits(disk_mb=8))


def test_a_missing_source_is_an_error(with_box, tmp_path):
    async def check(sandbox):
        with pytest.raises(TransferError, match="absent"):
            await sandbox.upload(tmp_path / "absent", "/workspace/x")

    with_box(check)


def test_a_directory_swapped_for_a_link_never_leads_to_the_host(with_box, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("of the host")
    victim.chmod(0o600)
    tree = make_tree(tmp_path / "tree")
    make = os.mkdir

    def made_and_swapped(path, mode=0o777, *, dir_fd=None):
        make(path, mode, dir_fd=dir_fd)
        if path == "swapped":  # what an agent that owns the parent does at that instant
            os.rmdir(path, dir_fd=dir_fd)
            os.symlink(victim, path, dir_fd=dir_fd)

    async def check(sandbox):
        monkeypatch.setattr(os, "mkdir", made_and_swapped)
        with pytest.raises(TransferError, match="upload"):
            await sandbox.upload(tree, "/workspace/swapped")
        assert victim.stat().st_mode & 0o777 == 0o600

    with_box(check)
