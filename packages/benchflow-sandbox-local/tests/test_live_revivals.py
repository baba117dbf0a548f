"""Boxes that come back wrong, late or not at all: nothing is left of them."""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_local import LocalProvider
from live_traces import MANY_FILES, echo, left, traces

WITHOUT_RESTORES = "restore) exit 3 ;;"
# Once it has been told which box it is to bring back.
FIRST_TIME = """restore) [ -e /run/tried ] || { : >/run/tried; set -- "$@" -D/tried; } ;;"""
HANGING = """restore) set -- "$@" "--action-script=$0" ;;
    pre-restore) exec sleep 86399 ;;"""
TORN = """dump) $engine "$@"; code=$?
    for each; do case $each in -D*) image=${each#-D} ;; esac; done
    truncate -s -4096 "$image"/pages-*.img
    exit $code ;;"""
# Its end as soon as the engine has made a process of the box, beside itself.
KILLED_ONCE = """restore) [ -e /run/tried ] || set -- "$@" "--action-script=$0" ;;
    post-setup-namespaces) : >/run/tried; kill -9 $PPID ;;"""
# A box's first process dies, and is collected, before an engine ends that has not noticed it.
DYING = """restore) set -- "$@" "--action-script=$0" ;;
    post-resume) kill -9 $CRTOOLS_INIT_PID
    while kill -0 $CRTOOLS_INIT_PID 2>/dev/null; do sleep 0.01; done ;;"""


def test_a_restore_that_fails_once_is_tried_again(with_provider, broken):
    broken(FIRST_TIME)

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(MANY_FILES)).ok
        process = await parent.spawn(["cat"])
        await provider.discard(await parent.snapshot("live"))
        assert await echo(process, b"alive") == b"alive"
        await process.aclose()

    with_provider(check)


def test_a_parent_that_does_not_come_back_is_cleanly_gone(with_provider, broken, store):
    broken(WITHOUT_RESTORES)

    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        before = traces(store)
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(MANY_FILES)).ok
        process = await parent.spawn(["cat"])
        with pytest.raises(SnapshotError, match="cannot be restored"):
            await parent.snapshot("live")
        assert await process.wait() == 137
        with pytest.raises(SandboxError):
            await parent.exec(["true"])
        await process.aclose()
        await parent.teardown()
        assert traces(store) <= before
        return parent.group.paths

    assert not any(Path(path).exists() for path in with_provider(check))


def test_an_engine_that_is_killed_half_way_leaves_nothing_in_the_way_of_another_try(
    with_provider, broken, store
):
    broken(KILLED_ONCE)

    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        before = traces(store)
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(MANY_FILES)).ok
        process = await parent.spawn(["cat"])
        members = len(parent.group.members())
        await provider.discard(await parent.snapshot("live"))
        assert await echo(process, b"alive") == b"alive"
        assert len(parent.group.members()) == members
        await process.aclose()
        await parent.teardown()
        assert traces(store) <= before

    with_provider(check)


# The engine itself hangs on a torn image: what it waits for has died.
@pytest.mark.parametrize("fault", [HANGING, TORN], ids=["hanging", "torn"])
def test_a_child_whose_restore_does_not_end_is_typed_and_leaves_nothing(
    with_provider, broken, store, fault
):
    saved = store.with_name("saved")

    async def save(provider):
        await provider.save(await (await provider.create(SandboxSpec())).snapshot("live"), saved)

    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        image = await provider.load(saved)
        before = traces(store)
        with pytest.raises(SnapshotError, match="cannot be restored"):
            await provider.create(SandboxSpec(), image=image)
        assert traces(store) <= before
        assert [record async for record in provider.sandboxes()] == []

    broken(fault)
    with_provider(save)
    with_provider(check, live_seconds=1)


def names_below(pid):
    """Return the names of all processes below one."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += names_below(child)
            found.append(Path(f"/proc/{child}/comm").read_text().strip())
    return found


async def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("prefer_cgroup_v2", [False, True], ids=["v1", "v2"])
def test_an_engine_whose_child_nobody_waits_for_leaves_no_process(
    with_provider, broken, prefer_cgroup_v2
):
    broken(HANGING)

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        image = await parent.snapshot("live")
        launcher = provider._launcher.pid
        async with asyncio.TaskGroup() as group:
            child = group.create_task(provider.create(SandboxSpec(), image=image))
            await until(lambda: "sleep" in names_below(launcher))
            child.cancel()
        assert child.cancelled()
        await until(lambda: "sleep" not in names_below(launcher))

    with_provider(check, prefer_cgroup_v2=prefer_cgroup_v2)


def test_a_child_that_has_died_before_the_engine_ends_is_typed_and_leaves_nothing(
    with_provider, broken, store
):
    broken(DYING)

    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        parent = await provider.create(SandboxSpec())
        image = await parent.snapshot("live")
        before = traces(store)
        with pytest.raises(SnapshotError, match="cannot be restored"):
            await provider.create(SandboxSpec(), image=image)
        assert traces(store) <= before
        assert (await parent.exec(["true"])).ok

    with_provider(check)


@pytest.mark.usefixtures("criu")
@pytest.mark.parametrize("damage", ["shorter", "missing"])
def test_a_torn_image_is_told_as_such_before_an_engine_starts(with_provider, store, damage):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["cat"])
        image = await parent.snapshot("live")
        before = traces(store)
        [pages, *_] = sorted((store / "live").glob("*/*/pages-*.img"))
        pages.rename(kept := store / pages.name)
        if damage == "shorter":
            pages.write_bytes(kept.read_bytes()[:-4096])
        with pytest.raises(SnapshotError, match="the image is truncated: it has"):
            await provider.create(SandboxSpec(), image=image)
        assert traces(store) <= before
        assert await echo(process, b"alive") == b"alive"
        await process.aclose()
        pages.unlink(missing_ok=True)
        kept.rename(pages)
        await (await provider.create(SandboxSpec(), image=image)).teardown()

    with_provider(check, live_images="disk")


RUNNER = """
import asyncio, json, sys
from pathlib import Path
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    provider = LocalProvider(store=Path(sys.argv[1]))
    sandbox = await provider.create(SandboxSpec())
    assert (await sandbox.exec("seq 1 600 | xargs touch")).ok
    process = await sandbox.spawn(["cat"])
    print(json.dumps(sandbox.group.paths), flush=True)
    await sandbox.snapshot("live")

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_runner_that_is_killed_while_a_box_comes_back_leaves_nothing(broken, store):
    if os.geteuid() != 0:
        pytest.skip("live snapshots need root")
    broken(HANGING)
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(store)], stdout=subprocess.PIPE)
    groups = json.loads(runner.stdout.readline())
    members = Path(groups[0], "cgroup.procs")

    def names():
        found = []
        for pid in members.read_text().split():
            with suppress(OSError):  # it has just ended
                found.append(Path(f"/proc/{pid}/comm").read_text().strip())
        return found

    deadline = time.monotonic() + 60
    while "sleep" not in names():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    runner.kill()
    runner.wait()
    runner.stdout.close()
    assert len(asyncio.run(LocalProvider(store=store).reap(ReapPolicy()))) == 1
    assert not any(Path(path).exists() for path in groups)
    deadline = time.monotonic() + 60
    while left(store):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list((store / "mnt").iterdir()) == []
