"""Real forks of the probe's toy, with the library for the identity of files and without it."""

import json
from pathlib import Path

import pytest
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.in_sandbox import fork_probe_program

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("criu")]


SOURCE = Path(fork_probe_program.__file__).read_text()


async def lines(process, *notes):
    """Give the toy its notes; return what it says to the last one."""
    said = b""
    for note in notes:
        await process.stdin.write(f"{note}\n".encode() if note else b"")
        said = b""
        while not said.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, await process.stderr.read()
            said += data
    return json.loads(said)


async def lost_in_a_child(provider, sandbox, **environment):
    """Return what the toy loses in a child of `sandbox`."""
    process = await sandbox.spawn(["python3", "-I", "-c", SOURCE, "toy", "0"], env=environment)
    before = await lines(process, "", "before")
    assert (before["lost"], before["failed"]) == ({}, {})
    image = await sandbox.snapshot("live")
    child = await provider.create(sandbox.spec, image=image)
    told = await lines(await child.attach(process.id), "after")
    assert told["failed"] == {}
    return told["lost"]


def test_with_the_library_a_child_keeps_everything(with_provider):
    async def test(provider):
        sandbox = await provider.create(SandboxSpec())
        return await lost_in_a_child(provider, sandbox)

    assert with_provider(test) == {}


def test_without_the_library_sqlite_alone_keeps_its_identity(with_provider):
    async def test(provider):
        sandbox = await provider.create(SandboxSpec())
        gone = await sandbox.exec(["rm", "/etc/ld.so.preload"], user="root")
        assert gone.ok
        return await lost_in_a_child(provider, sandbox, LD_PRELOAD="")

    assert set(with_provider(test)) == {"file identity"}


DEEP = """
import os
for _ in range(300):
    os.mkdir("d")
    os.chdir("d")
"""


def test_a_tree_that_cannot_be_pinned_stops_the_fork_and_not_the_box(with_provider):
    async def test(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["python3", "-I", "-c", SOURCE, "toy", "0"])
        await lines(process, "", "before")
        assert (await sandbox.exec(["python3", "-I", "-c", DEEP])).ok
        with pytest.raises(SnapshotError, match="nested deeper"):
            await sandbox.snapshot("live")
        told = await lines(process, "after")
        assert (told["lost"], told["failed"]) == ({}, {})
        assert (await sandbox.exec(["rm", "-r", "d"])).ok
        await provider.discard(await sandbox.snapshot("live"))
        return await lines(process, "forked")

    told = with_provider(test)
    assert (told["lost"], told["notes"]) == ({}, ["before", "after", "forked"])
