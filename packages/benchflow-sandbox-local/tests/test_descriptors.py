"""A runner without open files to spare: the host's fault, and never an end of a process."""

import errno
import os
import resource
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchflow_contracts import blame
from benchflow_contracts.errors import HostError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_local import accounts, entrypoint
from benchflow_sandbox_local.accounts import AccountBook
from benchflow_sandbox_local.build.copier import Copier
from benchflow_sandbox_local.build.run_mount import RunMount, strip
from benchflow_sandbox_local.entrypoint import read_start
from benchflow_sandbox_local.launcher_process.criu.socket_options import differing
from benchflow_sandbox_local.launcher_process.inspection.message_queues import queues
from benchflow_sandbox_local.launcher_process.layers import tree
from benchflow_sandbox_local.launcher_process.layers.tree import LayerCopy
from benchflow_sandbox_local.launcher_process.paths import open_strict
from benchflow_sandbox_local.stopped_processes import refuse_stopped
from live_traces import echo

STARTED = """
import asyncio, resource, sys
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    async with LocalProvider(store=Path(sys.argv[1]), engine=sys.argv[2]) as provider:
        box = await provider.create(SandboxSpec())
        print((await box.exec("ulimit -Sn; ulimit -Hn")).stdout.split(),
              *map(str, resource.getrlimit(resource.RLIMIT_NOFILE)))

asyncio.run(main())
"""


@contextmanager
def no_more_files(spare=0):
    """Let this process open nothing more, or at most `spare` files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = [os.dup(0) for _ in range(spare + 1)]
    for each in lowest:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def host_lacks(call):
    with pytest.raises(HostError, match="open files") as caught:
        await call
    assert blame(caught.value, inside="agent").by == "host"
    assert caught.value.retryable


def test_a_running_process_is_not_ended_because_the_runner_has_no_open_files(with_box):
    async def check(box):
        process = await box.spawn(["cat"])
        with no_more_files():
            await host_lacks(process.wait())
            await host_lacks(process.kill())
            await host_lacks(box.exec(["true"]))
            await host_lacks(box.spawn(["true"]))
        assert await echo(process, b"alive") == b"alive"
        await process.stdin.aclose()
        assert await process.wait() == 0

    with_box(check)


@pytest.mark.usefixtures("criu")
def test_a_child_that_the_runner_has_no_open_files_for_is_the_host_s_fault(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["cat"])
        image = await parent.snapshot("live")
        empty = await provider.create(SandboxSpec())
        before = descriptors()
        with no_more_files():
            await host_lacks(provider.create(SandboxSpec(), image=image))
            await host_lacks(provider.create(SandboxSpec()))
            await host_lacks(empty.snapshot("live"))
        assert descriptors() == before
        child = await provider.create(SandboxSpec(), image=image)
        for cat in (process, await child.attach(process.id)):
            assert await echo(cat, b"alive") == b"alive"

    with_provider(check)


@pytest.mark.parametrize("prefer_cgroup_v2", [False, True], ids=["v1", "v2"])
def test_a_box_that_was_held_still_runs_on_without_open_files(with_provider, prefer_cgroup_v2):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        process = await box.spawn(["cat"])
        hold = box.freeze()
        await hold.__aenter__()
        with no_more_files():
            await hold.__aexit__(None, None, None)
            assert await echo(process, b"alive") == b"alive"
            with pytest.raises(HostError, match="open files"):
                await box.freeze().__aenter__()
        async with box.freeze():
            pass
        assert await echo(process, b"still") == b"still"

    with_provider(check, prefer_cgroup_v2=prefer_cgroup_v2)


@pytest.mark.parametrize("engine", ["criu", pytest.param("runsc", marks=pytest.mark.slow)])
def test_the_runner_takes_all_open_files_that_it_may_and_a_box_the_soft_limit(
    root, request, tmp_path, engine
):
    request.getfixturevalue(engine)
    command = ["bash", "-c", 'ulimit -Sn 512; ulimit -Hn 4096; exec "$@"', "bash"]
    command += [sys.executable, "-c", STARTED, str(tmp_path / "store"), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "['512', '4096'] 4096 4096\n", done.stderr


@pytest.fixture
def image(tmp_path):
    """Return a directory and a descriptor of it: an image with `/secret/key`."""
    (tmp_path / "image" / "secret").mkdir(parents=True)
    (tmp_path / "image" / "secret" / "key").write_text("s")
    fd = os.open(tmp_path / "image", os.O_PATH | os.O_DIRECTORY)
    yield tmp_path / "image", fd
    os.close(fd)


def test_a_build_without_open_files_takes_no_directory_for_missing(image):
    _, fd = image
    copier = Copier(fd, None, None, StopFlag())
    assert copier.is_directory("/secret")
    assert not copier.is_directory("/none")
    with no_more_files(), pytest.raises(HostError, match="open files"):
        copier.is_directory("/secret")


def test_a_build_without_open_files_keeps_no_mounted_file_in_the_image(image):
    directory, _ = image
    mounts = [RunMount("/secret/key", None, (0, 0), 0o600, "Dockerfile:1")]
    with no_more_files(1), pytest.raises(HostError, match="open files"):
        strip(directory, mounts)
    strip(directory, mounts)
    assert not (directory / "secret" / "key").exists()


def test_message_queues_that_cannot_be_looked_for_are_not_taken_for_absent(root):
    init, holders = os.getpid(), []
    assert list(queues(init, holders)) == []
    with no_more_files(1), pytest.raises(OSError, match="open files"):
        list(queues(init, holders))


def test_an_entrypoint_that_cannot_be_looked_at_is_not_taken_for_settled(image):
    _, fd = image
    assert read_start(fd, "/secret/key") == b"s"
    assert read_start(fd, "/none") == b""
    with no_more_files(), pytest.raises(HostError, match="open files"):
        read_start(fd, "/secret/key")


def test_a_process_that_ends_while_its_file_is_read_has_no_content(monkeypatch):
    """The kernel answers a read of an ended process' file in /proc with ESRCH."""
    running = subprocess.Popen(["sleep", "100"])

    def open_then_end(root, path, flags):
        fd = open_strict(root, path, flags)
        running.kill()
        running.wait()
        return fd

    monkeypatch.setattr(entrypoint, "open_strict", open_then_end)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        assert read_start(root, f"/proc/{running.pid}/cmdline") == b""
    finally:
        os.close(root)


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_one_that_runs():
    with no_more_files(), pytest.raises(HostError, match="open files"):
        refuse_stopped([os.getpid()])


def failing(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def test_users_that_a_broken_disk_holds_are_not_taken_for_missing(image, monkeypatch):
    monkeypatch.setattr(accounts, "open_strict", failing(errno.EIO))
    with pytest.raises(HostError, match="read the users"):
        AccountBook(image[1]).look_up("svc")


def test_a_layer_whose_disk_breaks_is_not_copied_as_a_hole(tmp_path, monkeypatch):
    (tmp_path / "trash").mkdir()
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    with (tmp_path / "from" / "data").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    copy = LayerCopy(str(tmp_path / "to"), "user.opaque", str(tmp_path / "trash"))
    monkeypatch.setattr(tree.os, "lseek", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        copy.apply(str(tmp_path / "from"))


def test_a_socket_option_that_the_host_has_no_memory_for_is_not_left_out(monkeypatch):
    with socket.socket(proto=socket.IPPROTO_TCP) as held:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3)
        assert list(differing(held))
        monkeypatch.setattr(socket.socket, "setsockopt", failing(errno.ENOBUFS))
        with pytest.raises(OSError, match="buffer space"):
            list(differing(held))
