"""The engines that wait for a child before there is one."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.live.criu import CriuEngine

pytestmark = pytest.mark.usefixtures("criu")

WAITS = b"CRIU_CONFIG_FILE=/proc/self/fd/3"
MANY_FILES = "seq 1 600 | xargs touch"
AT_ONCE = 5
MANY_PROCESSES = 25
"""They have more pipes than an engine has numbers below those of the descriptors that it keeps."""


def engines(store):
    """Return the directories in /proc of the engines that wait for boxes of this store."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = path.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            launcher = Path(f"/proc/{parent}/cmdline").read_text(errors="replace")
            if str(store) in launcher and WAITS in path.joinpath("environ").read_bytes().split(
                b"\0"
            ):
                found.append(path)
    return found


def kept_for_engines(provider, store):
    return list(Path(f"/proc/{provider._launcher.pid}/root{store}/mnt/standby").iterdir())


async def until_waiting(store, count):
    deadline = time.monotonic() + 60
    while len(found := engines(store)) != count:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    return found


async def image_of(provider):
    parent = await provider.create(SandboxSpec())
    process = await parent.spawn(["cat"])
    image = await parent.snapshot("live")
    await process.aclose()
    return parent, process.id, image


async def goes_on(provider, image, carried):
    child = await provider.create(SandboxSpec(), image=image)
    process = await child.attach(carried)
    await process.stdin.write(b"alive")
    async with asyncio.timeout(60):
        assert await process.stdout.read() == b"alive"
    await process.aclose()
    return child


def test_an_engine_waits_from_the_snapshot_on_and_sees_nothing_of_any_box(with_provider, store):
    async def check(provider):
        _, carried, image = await image_of(provider)
        (one,) = await until_waiting(store, 1)
        lines = (one / "mountinfo").read_text().splitlines()
        assert not [line for line in lines if f"{store}/mnt" in line.split()[4]]
        await goes_on(provider, image, carried)
        assert await until_waiting(store, 1) != [one]

    with_provider(check)
    assert engines(store) == []


def test_as_many_engines_wait_as_children_came_at_once(with_provider, store, monkeypatch):
    tries = []
    revive = CriuEngine.run_restore

    def counted(*arguments, **options):
        tries.append(arguments)
        return revive(*arguments, **options)

    monkeypatch.setattr(CriuEngine, "run_restore", counted)

    async def check(provider):
        _, carried, image = await image_of(provider)
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(goes_on(provider, image, carried))
        assert len(tries) == 2 * AT_ONCE  # each came back at the first try
        most = min(AT_ONCE, 2 * os.cpu_count())
        deadline = time.monotonic() + 60
        while not 1 <= len(engines(store)) <= most:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        # Of those that have done their work, nothing is left.
        assert len(kept_for_engines(provider, store)) <= most

    with_provider(check)


def test_a_child_with_many_processes_has_each_one_s_own_pipes(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        processes = [await parent.spawn(["cat"]) for _ in range(MANY_PROCESSES)]
        child = await provider.create(SandboxSpec(), image=await parent.snapshot("live"))
        carried = [await child.attach(process.id) for process in processes]
        for process in carried:
            await process.stdin.write(process.id.encode())
        async with asyncio.timeout(60):
            for process in carried:
                assert await process.stdout.read() == process.id.encode()
                await process.aclose()

    with_provider(check)


@pytest.mark.parametrize("prefer_cgroup_v2", [False, True], ids=["v1", "v2"])
def test_a_child_and_a_parent_that_comes_back_are_in_their_own_groups(
    with_provider, prefer_cgroup_v2
):
    async def check(provider):
        parent, carried, image = await image_of(provider)
        child = await goes_on(provider, image, carried)
        assert (await parent.exec(MANY_FILES)).ok
        await provider.discard(await parent.snapshot("live"))
        for sandbox in (parent, child):
            assert sandbox.running.pid in sandbox.group.members()
            async with sandbox.freeze():
                pass
            assert (await sandbox.exec(["true"])).ok

    with_provider(check, prefer_cgroup_v2=prefer_cgroup_v2)


def test_engines_that_die_while_they_wait_are_not_missed(with_provider, store):
    async def check(provider):
        _, carried, image = await image_of(provider)
        (one,) = await until_waiting(store, 1)
        os.kill(int(one.name), signal.SIGKILL)
        await goes_on(provider, image, carried)
        await goes_on(provider, image, carried)

    with_provider(check)
