"""What is left when a live snapshot goes wrong: nothing, and a parent that goes on."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SandboxFrozenError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_local import LocalProvider

MANY_FILES = "seq 1 600 | xargs touch"
"""With these a box is not kept over a dump, but brought back."""
WITHOUT_DUMPS = "dump) exit 3 ;;"
WITHOUT_RESTORES = "restore) exit 3 ;;"
# Once it has been told which box it is to bring back.
FIRST_TIME = """restore) [ -e /run/tried ] || { : >/run/tried; set -- "$@" -D/tried; } ;;"""
HANGING = """restore) set -- "$@" "--action-script=$0" ;;
    pre-restore) exec sleep 86399 ;;"""
STUCK = """dump) cat "${2#--config=}" >/dev/null; exec sleep 86399 ;;"""
HUNG_UP = """dump) if ! [ -e /run/tried{times} ]; then
    [ -e /run/tried ] && : >/run/triedonce || : >/run/tried
    cat "${{2#--config=}}" >/dev/null
    for each; do case $each in -D*) image=${{each#-D}} ;; esac; done
    echo "(00.1) Error (criu/sk-unix.c): sk unix: Unix socket to somewhere" >"$image/engine.log"
    exit 1
    fi ;;"""
# Its directory is one of those that the engine is shown.
WHEN_TOLD = """dump) $engine "$@"; code=$?
    until [ -e "${0%/*}/told" ]; do sleep 0.01; done
    exit $code ;;"""
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


@pytest.fixture
def broken(criu, tmp_path, monkeypatch):
    """Put a case of a shell script before the engine, which can be its action script, too."""

    def put(case):
        script = tmp_path / "engine"
        lines = ["#!/bin/sh", f"engine={criu}", f"case $1$CRTOOLS_SCRIPT_ACTION in {case} esac"]
        lines += ['[ "$CRTOOLS_SCRIPT_ACTION" ] || exec $engine "$@"']
        script.write_text("\n".join(lines))
        script.chmod(0o755)
        monkeypatch.setenv("BENCHFLOW_CRIU", str(script))

    return put


def launchers(store):
    """Yield the directories in /proc of the launchers of this store, and of their forks."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_text(errors="replace")  # others' may be anything
            if "box.launcher" in line and str(store) in line:
                yield path.parent


def left(store):
    """Return the names of what the launchers of this store keep for live images."""
    found = set()
    for path in launchers(store):
        for place in ("work", "images"):
            # A launcher's forks look like it, and come and go.
            with suppress(OSError):
                found.update(each.name for each in (path / f"root{store}/mnt" / place).iterdir())
    return found


def traces(store):
    """Count what a box can leave: files, mounts, and what holds namespaces or processes."""
    mounts = set()
    for path in launchers(store):
        with suppress(OSError):
            if os.getsid(int(path.name)) != int(path.name):
                continue  # a fork, which has mounts of its own
            lines = (path / "mountinfo").read_text().splitlines()
            mounts.update(line.split()[4] for line in lines)
    held = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            held.append(str(path.readlink()).partition(":")[0])
    kinds = [kind for kind in held if kind in {"net", "anon_inode"}]
    return Counter([*left(store), *mounts, *kinds])


async def echo(process, text):
    await process.stdin.write(text)
    async with asyncio.timeout(60):
        return await process.stdout.read()


def test_a_dump_that_fails_leaves_nothing_and_an_unharmed_parent(with_provider, broken, store):
    broken(WITHOUT_DUMPS)

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["cat"])
        for _ in range(2):
            with pytest.raises(SnapshotError, match="cannot be dumped"):
                await parent.snapshot("live")
            assert left(store) == set()
            assert await echo(process, b"alive") == b"alive"
        assert (await parent.exec(["true"])).ok
        await process.aclose()

    with_provider(check)


def test_a_box_that_has_not_noticed_a_hang_up_is_dumped_when_it_has(with_provider, broken):
    broken(HUNG_UP.format(times="once"))

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        assert (await child.exec(["true"])).ok

    with_provider(check)


def test_a_frozen_box_cannot_notice_so_its_holder_is_told_to_try_again(with_provider, broken):
    broken(HUNG_UP.format(times=""))

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        async with parent.freeze():
            with pytest.raises(SnapshotError, match="Unix socket") as caught:
                await parent.snapshot("live")
        assert caught.value.retryable
        async with parent.freeze():
            await parent.snapshot("live")

    with_provider(check)


@pytest.mark.usefixtures("criu")
def test_a_fork_that_is_refused_leaves_nothing_of_the_engine_that_was_ready(with_provider, store):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["sleep", "86399"])
        await process.stdin.write(b"unread")
        with pytest.raises(SnapshotError, match="has not read"):
            await parent.snapshot("live")
        assert left(store) == set()
        assert (await parent.exec(["true"])).ok
        await process.aclose()

    with_provider(check)


@pytest.mark.usefixtures("criu")
@pytest.mark.parametrize("command", ["true", MANY_FILES], ids=["kept", "brought-back"])
def test_who_reads_beside_a_snapshot_can_be_cancelled_and_leaves_nothing(
    with_provider, store, tmp_path, command
):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(command)).ok
        process = await parent.spawn(["cat"])
        reading = asyncio.Event()

        async def hang():
            assert left(store)  # the engine is ready before the box stands still
            await parent.download("/etc/passwd", tmp_path / "accounts")
            reading.set()
            await asyncio.Event().wait()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            snapshot = group.create_task(parent.snapshot("live", during=hang))
            await reading.wait()
            snapshot.cancel()
        assert snapshot.cancelled()
        assert left(store) == set()
        assert await echo(process, b"alive") == b"alive"
        image = await parent.snapshot("live", during=lambda: asyncio.sleep(0))
        assert await echo(process, b"still") == b"still"
        async with parent.freeze():
            await provider.discard(await parent.snapshot("live", during=lambda: asyncio.sleep(0)))
            with pytest.raises(SandboxFrozenError):
                await parent.exec(["true"])
        child = await provider.create(SandboxSpec(), image=image)
        for box, cat in ((parent, process), (child, await child.attach(process.id))):
            assert (await box.exec(["true"])).ok
            assert await echo(cat, b"on") == b"on"

    with_provider(check)


@pytest.mark.parametrize("command", ["true", MANY_FILES], ids=["kept", "brought-back"])
def test_an_image_that_nobody_waits_for_any_more_is_discarded(
    with_provider, broken, store, tmp_path, command
):
    broken(WHEN_TOLD)

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(command)).ok
        process = await parent.spawn(["cat"])
        read = asyncio.Event()

        async def reads():
            read.set()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            snapshot = group.create_task(parent.snapshot("live", during=reads))
            await read.wait()
            snapshot.cancel()
            (tmp_path / "told").touch()
        assert snapshot.cancelled()
        assert not [name for name in left(store) if name.startswith("i")]  # an image's
        assert await echo(process, b"alive") == b"alive"
        await process.aclose()

    with_provider(check)


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
        with pytest.raises(SnapshotError, match="does not come back"):
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


def test_a_box_whose_dump_takes_too_long_is_cleanly_gone(with_provider, broken, store):
    broken(STUCK)

    async def check(provider):
        await (await provider.create(SandboxSpec())).teardown()
        before = traces(store)
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["cat"])
        with pytest.raises(SnapshotError, match="did not end in"):
            await parent.snapshot("live")
        with pytest.raises(SandboxError, match="is lost"):
            await parent.exec(["true"])
        await process.aclose()
        await parent.teardown()
        assert traces(store) <= before
        return parent.group.paths

    assert not any(Path(path).exists() for path in with_provider(check, live_seconds=0.5))


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
        with pytest.raises(SnapshotError, match="does not come back"):
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
        with pytest.raises(SnapshotError, match="does not come back"):
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
        with pytest.raises(SnapshotError, match="the image is torn: it has"):
            await provider.create(SandboxSpec(), image=image)
        assert traces(store) <= before
        assert await echo(process, b"alive") == b"alive"
        await process.aclose()
        pages.unlink(missing_ok=True)
        kept.rename(pages)
        await (await provider.create(SandboxSpec(), image=image)).teardown()

    with_provider(check, live_images="disk")


@pytest.mark.usefixtures("criu")
def test_the_budget_is_kept_and_a_discarded_image_gives_its_share_back(with_provider, store):
    script = "x = b'x' * (16 << 20); print('up', flush=True); import sys; sys.stdin.read()"

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", script])
        assert await process.stdout.read() == b"up\n"
        first = await parent.snapshot("live")
        with pytest.raises(SnapshotError, match="budget") as refused:
            await parent.snapshot("live")
        assert "live_budget_mb" in refused.value.hint
        await provider.discard(first)
        second = await parent.snapshot("live")
        assert len([name for name in left(store) if name.startswith("i")]) == 1
        await provider.discard(second)
        await process.aclose()

    with_provider(check, live_budget_mb=32)


@pytest.mark.usefixtures("criu")
def test_the_engine_writes_nothing_through_links_that_a_box_has_planted(with_provider, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    script = f"""
import os, sys
os.mkdir("/workspace/d")
held = open("/workspace/d/ghost", "w+")
held.write("planted"); held.flush()
os.unlink("/workspace/d/ghost"); os.rmdir("/workspace/d")
os.symlink({str(outside)!r}, "/workspace/d")
print("up", flush=True)
sys.stdin.read()
"""

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", script])
        assert await process.stdout.read() == b"up\n"
        try:
            image = await parent.snapshot("live")
            await provider.create(SandboxSpec(), image=image)
        except SnapshotError:
            pass  # refusing it is as good
        await process.aclose()

    with_provider(check)
    assert list(outside.iterdir()) == []


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
        return [
            Path(f"/proc/{pid}/comm").read_text().strip() for pid in members.read_text().split()
        ]

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
