# A limit is hit by one of many calls.
# ruff: noqa: PT012

import asyncio
from contextlib import suppress

import pytest
from benchflow_contracts.errors import SandboxError, SandboxLimitError
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec

FILL = """
import os, time
try:
    while os.fork(): pass
    time.sleep(1000)
except BlockingIOError:
    print("full", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("prefer_cgroup_v2", [False, True])
def test_a_fork_bomb_stays_below_the_limit_and_spares_the_next_command(
    with_provider, prefer_cgroup_v2
):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec(limits=ResourceLimits(pids=40)))
        if "pids" not in sandbox.group.enforced:
            pytest.skip("this hierarchy has no pids controller")
        bomb = "b() { b | b & }; b; sleep 1"
        with suppress(SandboxError):
            await sandbox.exec(bomb, timeout=5)
        # What the bomb left behind goes on forking. One call ends all of it at once; until the
        # bomb leaves room, no process can make this call.
        for _ in range(500):
            with suppress(SandboxError):
                await sandbox.exec("kill -9 -1", timeout=5)
                break
            await asyncio.sleep(0.02)
        assert (await sandbox.exec(["pgrep", "bash"], timeout=10)).exit_code == 1

    with_provider(check, prefer_cgroup_v2=prefer_cgroup_v2)


def test_a_box_full_of_processes_says_so(with_box):
    async def check(sandbox):
        process = await sandbox.spawn(["python3", "-I", "-c", FILL])
        assert await process.stdout.read() == b"full\n"
        with pytest.raises(SandboxLimitError, match="pids"):
            for _ in range(40):
                await sandbox.spawn(["sleep", "100"])
        await process.aclose()

    with_box(check, limits=ResourceLimits(pids=20))


def test_a_memory_bomb_is_killed_and_named(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec(limits=ResourceLimits(memory_mb=64)))
        other = await provider.create(SandboxSpec())
        with pytest.raises(SandboxLimitError, match="memory"):
            await sandbox.exec(["python3", "-c", "x = bytearray(1 << 30)"], timeout=30)
        assert (await sandbox.exec("echo on")).stdout == "on\n"
        assert (await other.exec("echo on")).stdout == "on\n"
        # A kill that memory did not cause is a plain result.
        assert (await sandbox.exec("kill -9 $$")).exit_code == 137

    with_provider(check)


def test_a_full_disk_is_an_error_inside_and_harmless_outside(with_provider):
    async def check(provider):
        limits = ResourceLimits(disk_mb=16)
        sandbox = await provider.create(SandboxSpec(limits=limits))
        image = await sandbox.snapshot()
        child = await provider.create(SandboxSpec(limits=limits), image=image)
        filled = await sandbox.exec("head -c 200000000 /dev/zero > big; stat -c %s big")
        assert "space" in filled.stderr
        # The family's cap is the sum of its members'.
        assert int(filled.stdout) <= 33 << 20
        many = await child.exec("mkdir m; cd m; seq 100000 | xargs touch; echo rc $?")
        assert "rc 0" not in many.stdout
        await sandbox.exec("rm big")
        assert (await sandbox.exec("echo fits > small; cat small")).stdout == "fits\n"

    with_provider(check)


def test_the_processor_share_is_set(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec(limits=ResourceLimits(cpus=0.5)))
        spin = (
            "import time; s=time.monotonic()\nwhile time.monotonic() - s < 1: pass\n"
            "print(time.process_time())"
        )
        used = float((await sandbox.exec(["python3", "-I", "-c", spin])).stdout)
        assert used < 0.8

    with_provider(check)
