"""Boxes that are kept over a live fork, and boxes that come back: both, down a tree of forks."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.in_sandbox import fork_probe_program
from benchflow_sandbox_local.launcher_process.layers.inode_pins import (
    ATTRIBUTE,
    MAX_COPIED_BYTES,
    MAX_COPIED_ENTRIES,
)

pytestmark = pytest.mark.usefixtures("criu")

TOY = ["python3", "-I", "-c", Path(fork_probe_program.__file__).read_text(), "toy", "0"]
FEW = "true"
MANY = f"mkdir -p $RANDOM$RANDOM && cd $_ && seq 0 {MAX_COPIED_ENTRIES} | xargs touch"
LARGE = f"head -c {MAX_COPIED_BYTES + 1} /dev/zero > $RANDOM$RANDOM"


async def line_of(process):
    said = b""
    async with asyncio.timeout(120):
        while not said.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, await process.stderr.read()
            said += data
    return said.decode().rstrip()


async def look(process, note):
    """Let the toy look at what it holds; return what it has lost."""
    await process.stdin.write(f"{note}\n".encode())
    told = json.loads(await line_of(process))
    assert told["failed"] == {}
    assert told["notes"][-1] == note
    assert told["files"] == sorted(told["notes"])
    return told["lost"]


@pytest.mark.parametrize(
    ("files", "kept"), [(FEW, True), (MANY, False), (LARGE, False)], ids=["few", "many", "large"]
)
def test_a_box_is_kept_when_a_copy_of_its_files_is_cheap(with_provider, files, kept):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(["bash", "-c", files])).ok
        process = await parent.spawn(["cat"])
        before = parent.running.pid
        await provider.discard(await parent.snapshot("live"))
        assert (parent.running.pid == before) is kept
        await process.stdin.write(b"alive")
        assert await process.stdout.read() == b"alive"
        await process.aclose()

    with_provider(check)


async def chain(provider, files, kept):
    """Fork child after child, and each of them again after its own child; look at all."""
    box = await provider.create(SandboxSpec())
    process = await box.spawn(TOY)
    await line_of(process)
    lost = {"before": await look(process, "before")}
    for depth in range(1, 5):
        assert (await box.exec(["bash", "-c", files])).ok
        before = box.running.pid
        child = await provider.create(SandboxSpec(), image=await box.snapshot("live"))
        assert (box.running.pid == before) is kept
        carried = await child.attach(process.id)
        lost[f"child {depth}"] = await look(carried, f"c{depth}")
        lost[f"parent {depth}"] = await look(process, f"p{depth}")
        again = await provider.create(SandboxSpec(), image=await box.snapshot("live"))
        second = await again.attach(process.id)
        lost[f"second {depth}"] = await look(second, f"s{depth}")
        for each in (process, second):
            await each.aclose()
        for each in (box, again):
            await each.teardown()
        box, process = child, carried
    await process.aclose()
    return {where: what for where, what in lost.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize(("files", "kept"), [(FEW, True), (MANY, False)], ids=["few", "many"])
def test_nothing_is_lost_four_forks_deep(with_provider, files, kept):
    async def check(provider):
        return await chain(provider, files, kept)

    assert with_provider(check) == {}


def layers(store):
    """Return the directories of all sealed layers, as the launcher sees them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a fork of the launcher that has just ended
            line = path.read_text(errors="replace")  # others' may be anything
            if "launcher_process.server" in line and str(store) in line:
                return list((path.parent / f"root{store}/mnt").glob("f-*/l??????"))
    raise AssertionError("no launcher")


@pytest.mark.slow
def test_without_the_pins_a_copy_admits_a_second_writer_at_once(with_provider, store):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(TOY)
        await line_of(process)
        assert await look(process, "before") == {}
        image = await parent.snapshot("live")
        (layer,) = layers(store)
        for path in layer.rglob("*"):
            with suppress(OSError):  # it has none
                os.removexattr(path, ATTRIBUTE, follow_symlinks=False)
        child = await provider.create(SandboxSpec(), image=image)
        carried = await child.attach(process.id)
        lost = await look(carried, "after")
        assert await look(process, "on") == {}
        for each in (process, carried):
            await each.aclose()
        return lost

    lost = with_provider(check)
    assert lost["sqlite"] == "SQLite admitted a second writer (delete)"
    assert lost["sqlite wal"] == "SQLite admitted a second writer (wal)"


NAMELESS = """
import os, sys
for name in ("ghost", "linked"):
    open(name, "w").write(name)
os.link("linked", "other")
held = [open("ghost", "r+"), open("linked", "r+")]
os.unlink("ghost"); os.unlink("linked")
print("up", flush=True)
for line in sys.stdin:
    for file in held:
        file.seek(0)
    print(*(file.read() for file in held), open("other").read(), flush=True)
    held[1].write("+"); held[1].flush()
"""


def test_open_files_without_a_name_are_carried_and_leave_nothing_in_the_tree(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", NAMELESS])
        assert await line_of(process) == "up"
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        carried = await child.attach(process.id)
        for each, box in ((process, parent), (carried, child)):
            for count in range(2):
                await each.stdin.write(b"\n")
                same = "linked" + "+" * count
                assert await line_of(each) == f"ghost {same} {same}"
            assert (await box.exec("ls -A")).stdout == "other\n"
            await each.aclose()

    with_provider(check)
