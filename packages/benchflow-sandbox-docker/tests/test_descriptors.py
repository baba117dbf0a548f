"""A runner without open files to spare: the host's fault, never an engine that cannot observe."""

import asyncio
import os
import resource
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchflow_contracts import HostError
from benchflow_sandbox_docker.changes import open_directory
from benchflow_sandbox_docker.host_files import container_root, overlay_of
from benchflow_sandbox_docker.running_container import counters_of


class Told:
    """What an engine says of a container whose first process is this one."""

    async def rootless(self):
        return False

    async def do(self, _call, container):
        state = {"Pid": os.getpid()}
        return {
            "Id": container,
            "State": state,
            "Mounts": [],
            "GraphDriver": {"Name": "overlayfs", "Data": None},
        }


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


@pytest.mark.parametrize("spare", [0, 1])
def test_a_root_that_cannot_be_opened_is_not_taken_for_one_of_another_host(spare):
    async def check():
        before = descriptors()
        with no_more_files(spare), pytest.raises(HostError, match="open files"):
            await container_root(Told(), "c").__aenter__()
        assert descriptors() == before

    asyncio.run(check())


def test_layers_that_cannot_be_found_are_not_taken_for_ones_of_another_host():
    async def check():
        with no_more_files(), pytest.raises(HostError, match="open files"):
            await overlay_of(Told(), "c")

    asyncio.run(check())


def test_layers_that_cannot_be_opened_are_not_taken_for_unreadable(tmp_path):
    with ExitStack() as stack:
        with no_more_files(), pytest.raises(HostError, match="open files"):
            open_directory(str(tmp_path), stack)
        assert Path(f"/proc/self/fd/{open_directory(str(tmp_path), stack)}").samefile(tmp_path)


def test_counters_that_cannot_be_found_are_not_taken_for_uncounted():
    assert counters_of(1 << 22).host_shortage() is None  # there is no such process
    with no_more_files(), pytest.raises(HostError, match="open files"):
        counters_of(os.getpid())
