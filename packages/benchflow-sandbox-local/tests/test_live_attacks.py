"""What a hostile box does to its own live snapshot."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec

pytestmark = pytest.mark.usefixtures("criu")

STOPPED = """
import os, signal, threading, time
child = os.fork()
if not child:
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    time.sleep(1e6)
os.kill(child, signal.SIGSTOP)
os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
print("stopped", flush=True)
input()
"""
SAME = ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh")
SAME = (*SAME, "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigIgn", "SigBlk")
NARROW = """
import os, resource
os.umask(0o077)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 800))
print("ready", flush=True)
input()
"""


async def line_of(process):
    async with asyncio.timeout(60):
        return (await process.stdout.read()).decode().strip()


def test_a_stopped_process_is_refused_at_once_and_its_box_goes_on(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", STOPPED])
        assert await line_of(process) == "stopped"
        with pytest.raises(SnapshotError, match="'python3' is stopped") as refused:
            await parent.snapshot("live")
        assert "SIGCONT" in refused.value.hint
        assert (await parent.exec(["true"])).ok
        await process.aclose()

    with_provider(check)


def facts(pid):
    """Return what a process may do and what it holds."""
    place = Path(f"/proc/{pid}")
    lines = (line.partition(":") for line in (place / "status").read_text().splitlines())
    told = {name: value.strip() for name, _, value in lines if name in SAME}
    told["limits"] = (place / "limits").read_text()
    told["environment"] = (place / "environ").read_bytes()
    told["nice"] = (place / "stat").read_text().rpartition(")")[2].split()[16]
    told["kinds"] = {
        int(fd.name): str(fd.readlink()).partition(":")[0] for fd in (place / "fd").iterdir()
    }
    mounts = (line.split(" - ")[0] for line in (place / "mountinfo").read_text().splitlines())
    told["mounts"] = [line.split()[3:6] for line in mounts]
    return told


def box(sandbox):
    """Return the facts of every process in a box, by name and user."""
    found = {}
    for pid in sandbox.group.members():
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        # Init is at work for the host, which talks to it now and then.
        if name != "init":
            told = facts(pid)
            found[name, told["Uid"]] = told
    return found


def test_a_child_may_do_and_holds_what_its_parent_did_and_no_more(with_provider):
    async def check(provider):
        door = Door(upstream="http://127.0.0.1:9", port=8080, headers={"x-api-key": "relay-secret"})
        spec = SandboxSpec(network="model-only", doors=(door,))
        parent = await provider.create(spec)
        processes = [
            await parent.spawn(["python3", "-I", "-c", NARROW], user=user)
            for user in (None, "root")
        ]
        for process in processes:
            assert await line_of(process) == "ready"
        before = box(parent)
        assert len(before) == 2
        child = await provider.create(spec, image=await parent.snapshot("live"))
        assert box(parent) == before
        assert box(child) == before
        assert b"relay-secret" not in b"".join(told["environment"] for told in before.values())
        for process in processes:
            await process.aclose()

    with_provider(check)
