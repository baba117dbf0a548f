"""Where live images are kept: bounded, and gone when nothing needs them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchflow_contracts.errors import SnapshotError, UsageError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_local.launcher_process.layers.claim import claim, sweep

# Memory that belongs to no process until it is written down: nobody sees it coming.
HIDDEN = """
import os, sys
fd = os.memfd_create("hidden")
for _ in range(96): os.write(fd, os.urandom(1 << 20))
print("up", flush=True)
for line in sys.stdin: print(os.fstat(fd).st_size, flush=True)
"""


async def echo(process, text):
    await process.stdin.write(text)
    async with asyncio.timeout(60):
        return await process.stdout.read()


def on_disk(store):
    return sorted(path.name for path in (store / "live").glob("*/*"))


@pytest.mark.usefixtures("criu")
def test_a_place_that_is_full_is_said_and_the_parent_goes_on(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", HIDDEN])
        assert await echo(process, b"") == b"up\n"
        for _ in range(2):
            with pytest.raises(SnapshotError, match="no space is left") as refused:
                await parent.snapshot("live")
            assert "live_budget_mb" in refused.value.hint
            assert await echo(process, b"\n") == b"100663296\n"
        await process.aclose()
        # What was half written is gone: there is room for a smaller one.
        other = await provider.create(SandboxSpec())
        await provider.discard(await other.snapshot("live"))

    with_provider(check, live_budget_mb=64)


@pytest.mark.usefixtures("criu")
def test_images_on_disk_make_children_and_are_deleted_with_their_snapshot(with_provider, store):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["cat"])
        images = [await parent.snapshot("live") for _ in range(2)]
        names = sorted(image.ref.rpartition("/")[2] for image in images)
        assert on_disk(store) == names
        saved = store.with_name("saved")
        await provider.save(images[0], saved)
        await provider.discard(images[0])
        loaded = await provider.load(saved)
        assert len(on_disk(store)) == 2
        for image in (images[1], loaded):
            child = await provider.create(SandboxSpec(), image=image)
            carried = await child.attach(process.id)
            await provider.discard(image)
            assert await echo(carried, b"child") == b"child"
            await carried.aclose()
        assert on_disk(store) == []
        assert await echo(process, b"parent") == b"parent"
        await process.aclose()
        await parent.snapshot("live")

    with_provider(check, live_images="disk")
    assert list((store / "live").iterdir()) == []


RUNNER = """
import asyncio, sys
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    provider = LocalProvider(store=Path(sys.argv[1]))
    sandbox = await provider.create(SandboxSpec())
    await sandbox.snapshot("live")
    print("taken", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def killed_runner(store):
    environment = {**os.environ, "BENCHFLOW_LIVE_IMAGES": "disk"}
    command = [sys.executable, "-c", RUNNER, str(store)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert runner.stdout.readline() == b"taken\n"
    assert len(on_disk(store)) == 2
    runner.kill()
    runner.wait()
    runner.stdout.close()


@pytest.mark.usefixtures("criu")
def test_images_on_disk_of_a_killed_runner_are_reaped_and_those_of_a_living_one_are_not(
    with_provider, store
):
    async def check(provider):
        image = await (await provider.create(SandboxSpec())).snapshot("live")
        killed_runner(store)
        deadline = time.monotonic() + 60
        # Its processes end a moment after it.
        while len(on_disk(store)) != 1:
            assert time.monotonic() < deadline
            await provider.reap(ReapPolicy())
        await provider.create(SandboxSpec(), image=image)

    with_provider(check, live_images="disk")


HOLDER = """
import json, sys, time
from benchflow_sandbox_local.launcher_process.layers.claim import claim
print(json.dumps(claim(sys.argv[1])[0]), flush=True)
time.sleep(1000)
"""


def test_a_claimed_directory_stays_until_its_process_is_dead(tmp_path):
    parent = str(tmp_path / "live")
    command = [sys.executable, "-c", HOLDER, parent]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    held = Path(json.loads(holder.stdout.readline()))
    (held / "image").write_text("x")
    sweep(parent)
    ours, fd = claim(parent)
    assert held.exists() and Path(ours).exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    sweep(parent)
    assert not held.exists() and Path(ours).exists()
    os.close(fd)
    other, fd = claim(parent)
    assert [str(path) for path in Path(parent).iterdir()] == [other]
    os.close(fd)
    sweep(str(tmp_path / "never made"))


def test_a_place_that_is_not_known_is_refused(store, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_LIVE_IMAGES", "tape")
    with pytest.raises(UsageError, match="tape"):
        LocalProvider(store=store)
