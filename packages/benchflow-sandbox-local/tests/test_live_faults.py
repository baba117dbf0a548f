"""What is left when a live snapshot goes wrong: nothing, and a parent that goes on."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SandboxFrozenError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from live_traces import MANY_FILES, echo, left, traces

WITHOUT_DUMPS = "dump) exit 3 ;;"
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


USER = 54321
# Files in messages that nobody reads. At the end of the input they are gone.
FILES_IN_MESSAGES = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
ends = socket.socketpair()
socket.send_fds(ends[0], [b"x"], [0] * 100)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_dump_fails_while_messages_of_the_user_hold_many_files_and_may_be_repeated(
    with_provider, store
):
    holder = subprocess.Popen(
        [sys.executable, "-c", FILES_IN_MESSAGES, str(USER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    limited = ["prlimit", "--nofile=64:64", "setpriv", f"--reuid={USER}", "--clear-groups", "cat"]

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(limited, user="root")
        assert await echo(process, b"started") == b"started"
        with pytest.raises(SnapshotError, match="send_fds") as caught:
            await parent.snapshot("live")
        assert caught.value.retryable
        assert left(store) == set()
        assert await echo(process, b"alive") == b"alive"
        holder.communicate(timeout=60)
        await provider.discard(await parent.snapshot("live"))
        await process.aclose()

    try:
        assert holder.stdout.readline() == b"sent\n"
        with_provider(check)
    finally:
        holder.kill()
        holder.communicate()


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
            snapshot = group.create_task(parent.snapshot("live", while_frozen=hang))
            await reading.wait()
            snapshot.cancel()
        assert snapshot.cancelled()
        assert left(store) == set()
        assert await echo(process, b"alive") == b"alive"
        image = await parent.snapshot("live", while_frozen=lambda: asyncio.sleep(0))
        assert await echo(process, b"still") == b"still"
        async with parent.freeze():
            await provider.discard(
                await parent.snapshot("live", while_frozen=lambda: asyncio.sleep(0))
            )
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
            snapshot = group.create_task(parent.snapshot("live", while_frozen=reads))
            await read.wait()
            snapshot.cancel()
            (tmp_path / "told").touch()
        assert snapshot.cancelled()
        assert not [name for name in left(store) if name.startswith("i")]  # an image's
        assert await echo(process, b"alive") == b"alive"
        await process.aclose()

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
