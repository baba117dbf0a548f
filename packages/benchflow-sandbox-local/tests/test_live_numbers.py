"""SQLite in static programs, which no library of the box reaches, over real forks."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.launcher_process.layers.inode_pins import MAX_COPIED_ENTRIES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("criu")]

PROGRAM = "/srv/static"
MODES = ["wal", "delete"]
MANY = f"i=0; while [ $i -le {MAX_COPIED_ENTRIES} ]; do : > many-$i; i=$((i+1)); done"

# It runs without the library, so that the numbers that it knows are those of the kernel.
BAIT = """
import ctypes, json, mmap, os, struct, sys
file = open("known", "w+b")
info = os.fstat(file.fileno())
numbers = struct.pack("<QQ", info.st_dev, info.st_ino)
held = []
def database(neighbour=0):
    # A unixInodeInfo that one refers to, and a unixFile that does so.
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page.write(numbers + struct.pack("<QiiBB6xQi4xQQQ", 8, 0, 0, 0, 0, 0, 1, 0, neighbour, 0))
    page.write(struct.pack("<QQQi4x", 1 << 20, 1 << 20, start, file.fileno()))
    held.append(page)
    return start
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "many":
        held.append(bytearray(numbers + struct.pack("<Q8xQQi4xQQQ", 8, 0, 0, 1, 0, 0, 0)) * 10000)
    elif word == "torn":
        database(1 << 30)
    elif word == "whole":
        database()
    elif word == "locked":
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(database()), mmap.PAGESIZE, 1) == 0
    elif word == "free":
        held.clear()
    now = os.fstat(file.fileno())
    known = struct.unpack("<QQ", bytes(held[-1][:16])) if held else None
    print(json.dumps({"known": known, "now": [now.st_dev, now.st_ino]}), flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A static program with SQLite inside. Debian's libsqlite3-dev has what it is made of."""
    made = tmp_path_factory.mktemp("static") / "static"
    source = Path(__file__).with_name("static_sqlite.c")
    libraries = ["-lsqlite3", "-lpthread", "-ldl", "-lm"]
    command = ["gcc", "-static", "-O1", "-w", "-o", made, source, *libraries]
    subprocess.run(command, check=True, timeout=120)
    return made


async def said(process, line=b""):
    """Give a program a line; return what it answers."""
    if line:
        await process.stdin.write(line)
    answer = b""
    async with asyncio.timeout(60):
        while not answer.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, (answer, await process.stderr.read(), await process.wait())
            answer += data
    return answer.decode().strip()


async def started(sandbox, program, mode):
    await sandbox.upload(program, PROGRAM)
    assert (await sandbox.exec(["chmod", "755", PROGRAM], user="root")).ok
    command = [PROGRAM, "known.db", f"PRAGMA journal_mode={mode}"]
    process = await sandbox.spawn(command)
    assert await said(process) == "ready"
    return process


async def child_of(provider, image, process):
    sandbox = await provider.create(SandboxSpec(), image=image)
    return sandbox, await sandbox.attach(process.id)


@pytest.mark.parametrize("mode", MODES)
def test_a_child_refuses_a_second_writer_four_forks_deep(with_provider, program, mode):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await started(sandbox, program, mode)
        assert await said(process, b"look\n") == "refused 0 1 ok"
        for depth in range(2, 6):
            image = await sandbox.snapshot("live")
            sandbox, process = await child_of(provider, image, process)
            assert await said(process, b"look\n") == f"refused {depth - 1} {depth} ok"

    with_provider(check)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filling", ["true", MANY], ids=["kept", "brought back"])
def test_parent_and_siblings_refuse_a_second_writer(with_provider, program, mode, filling):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await started(sandbox, program, mode)
        for depth in range(1, 4):
            assert (await sandbox.exec(["sh", "-c", filling])).ok
            image = await sandbox.snapshot("live")
            for _ in range(2):
                _, born = await child_of(provider, image, process)
                assert await said(born, b"look\n") == f"refused {depth - 1} {depth} ok"
            assert await said(process, b"look\n") == f"refused {depth - 1} {depth} ok"

    with_provider(check)


def test_a_saved_image_knows_the_places_too(with_provider, program, tmp_path):
    async def save(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await started(sandbox, program, "wal")
        await provider.save(await sandbox.snapshot("live"), tmp_path / "saved")
        return process

    async def load(provider):
        image = await provider.load(tmp_path / "saved")
        _, born = await child_of(provider, image, process)
        assert await said(born, b"look\n") == "refused 0 1 ok"

    process = with_provider(save)
    with_provider(load)


@pytest.fixture
def with_bait(with_provider):
    """Run a test against a program that can make its memory look like SQLite's."""

    def run(test):
        async def check(provider):
            sandbox = await provider.create(SandboxSpec())
            assert (await sandbox.exec(["rm", "/etc/ld.so.preload"], user="root")).ok
            command = ["python3", "-I", "-c", BAIT]
            process = await sandbox.spawn(command, env={"LD_PRELOAD": ""})
            assert await said(process) == "ready"
            await test(provider, sandbox, process)

        with_provider(check)

    return run


@pytest.mark.parametrize(("bait", "why"), [("many", "more memory that looks"), ("torn", "instant")])
def test_memory_that_makes_no_sense_stops_the_fork_and_not_the_box(with_bait, bait, why):
    async def check(provider, sandbox, process):
        await said(process, f"{bait}\n".encode())
        with pytest.raises(SnapshotError, match=why):
            await sandbox.snapshot("live")
        await said(process, b"free\n")
        image = await sandbox.snapshot("live")
        _, born = await child_of(provider, image, process)
        assert json.loads(await said(born, b"look\n"))["known"] is None

    with_bait(check)


def test_memory_that_makes_no_sense_ends_a_box_that_is_not_kept(with_bait):
    async def check(_provider, sandbox, process):
        await said(process, b"torn\n")
        assert (await sandbox.exec(["sh", "-c", MANY])).ok
        with pytest.raises(SnapshotError, match="and the sandbox has ended"):
            await sandbox.snapshot("live")
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])

    with_bait(check)


def test_memory_that_cannot_be_written_costs_the_child_and_not_the_box(with_bait):
    async def check(provider, sandbox, process):
        before = json.loads(await said(process, b"locked\n"))
        image = await sandbox.snapshot("live")
        with pytest.raises(SnapshotError, match="numbers of files cannot be exchanged"):
            await provider.create(sandbox.spec, image=image)
        assert json.loads(await said(process, b"look\n")) == before

    with_bait(check)


def test_memory_that_lies_changes_nothing_but_itself(with_bait):
    async def check(provider, sandbox, process):
        before = json.loads(await said(process, b"whole\n"))
        assert before["known"] == before["now"]
        _, born = await child_of(provider, await sandbox.snapshot("live"), process)
        after = json.loads(await said(born, b"look\n"))
        assert after["known"] == after["now"] != before["now"]
        assert json.loads(await said(process, b"look\n")) == before

    with_bait(check)
