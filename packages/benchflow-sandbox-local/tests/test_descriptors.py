"""A runner without open files to spare: the host's fault, and never an end of a process."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchflow_contracts import blame
from benchflow_contracts.errors import HostError
from benchflow_contracts.sandbox import SandboxSpec
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
def no_more_files():
    """Let this process open nothing more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
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
