# What is left behind is looked for on the spot.
# ruff: noqa: ASYNC240

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchflow_contracts import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_local import LocalProvider

RUNNER = """
import asyncio, json, sys
from pathlib import Path
from benchflow_contracts import RolloutIdentity, SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    provider = LocalProvider(store=Path(sys.argv[1]), prefer_cgroup_v2=sys.argv[2] == "v2")
    sandbox = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="killed"))
    await sandbox.spawn(["sleep", "86399"])
    await sandbox.snapshot()
    pids = [sandbox.running.pid]
    found = {"id": sandbox.id, "groups": sandbox.group.paths, "pid": sandbox.running.pid}
    found["launcher"] = provider._launcher.pid
    if sys.argv[3].startswith("frozen"):
        async with sandbox.freeze():
            print(json.dumps(found), flush=True)
            await asyncio.sleep(1000)
    print(json.dumps(found), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def killed_runner(store, version="v1", state="running"):
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(store), version, state], stdout=subprocess.PIPE
    )
    found = json.loads(process.stdout.readline())
    members = Path(f"{found['groups'][0]}/cgroup.procs").read_text().split()
    assert str(found["pid"]) in members
    if state == "frozen-alone":
        # Together: neither may see the other's end.
        process.send_signal(signal.SIGSTOP)
        os.kill(found["launcher"], signal.SIGKILL)
    if state == "stopped-launcher":
        os.kill(found["launcher"], signal.SIGSTOP)
    process.kill()
    process.wait()
    process.stdout.close()
    return found, members


def gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in {"Z", "X"}


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def records(store):
    async def read():
        return [record async for record in LocalProvider(store=store).sandboxes()]

    return asyncio.run(read())


def reap(store, **policy):
    return asyncio.run(LocalProvider(store=store).reap(ReapPolicy(**policy)))


def mounts(store):
    # Others on the machine mount and unmount meanwhile; ours name the store, or are of this source.
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(store) in line or " benchflow " in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with users need root")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("state", ["running", "frozen", "frozen-alone"])
def test_nothing_of_a_killed_runner_is_left(store, version, state):
    found, members = killed_runner(store, version, state)
    (record,) = records(store)
    assert (record.id, record.provider, record.owner_alive) == (found["id"], "local", False)
    assert record.identity == RolloutIdentity(scope="killed")
    if state != "frozen-alone":
        # Its launcher ends what it has left; reaping is for what a launcher leaves that is killed.
        wait_until(lambda: all(gone(pid) for pid in [*members, found["launcher"]]))
        assert not any(Path(path).exists() for path in found["groups"])
    assert [r.id for r in reap(store, dry_run=True)] == [found["id"]]
    assert len(records(store)) == 1
    assert reap(store, scope="other") == []
    assert reap(store, dead_owners=False) == []
    assert [r.id for r in reap(store, scope="killed")] == [found["id"]]
    wait_until(lambda: all(gone(pid) for pid in members))
    assert not any(Path(path).exists() for path in found["groups"])
    assert records(store) == []
    assert list((store / "mnt").iterdir()) == []
    assert mounts(store) == []
    assert reap(store) == []


def test_empty_groups_of_dead_runners_go_when_the_next_provider_starts(with_provider, store):
    found, members = killed_runner(store)
    wait_until(lambda: all(gone(pid) for pid in [*members, found["launcher"]]))
    empty, *others = [Path(path) for path in found["groups"]]
    busy = others or [empty]
    for path in found["groups"]:
        # As when it is killed between making a group and starting the box in it.
        Path(path).mkdir()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        (busy[0] / "cgroup.procs").write_text(str(child.pid))

        async def check(provider):
            await provider.create(SandboxSpec())
            assert [path for path in map(Path, found["groups"]) if path.exists()] == busy[:1]
            assert child.poll() is None

        with_provider(check)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
    reap(store)
    assert not busy[0].exists()


def test_a_living_owner_and_foreign_things_are_never_touched(with_provider, store):
    # A run that was killed leaves its own behind.
    foreign = Path(f"/sys/fs/cgroup/freezer/benchflow-foreign{os.getpid()}")

    async def check(provider):
        sandbox = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="mine"))
        process = await sandbox.spawn(["cat"])
        killed_runner(store)
        (store / "boxes" / "note.json").write_text("{}")
        (store / "boxes" / "bf-x.json").write_text("not json")
        assert [r.identity.scope for r in await LocalProvider(store=store).reap(ReapPolicy())] == [
            "killed"
        ]
        await process.stdin.write(b"alive")
        assert await process.stdout.read() == b"alive"
        assert sorted(path.name for path in (store / "boxes").iterdir()) == sorted(
            ["note.json", "bf-x.json", f"{sandbox.id}.json"]
        )
        assert foreign.exists()
        await process.aclose()

    foreign.mkdir()
    try:
        with_provider(check)
    finally:
        foreign.rmdir()


def test_a_label_cannot_point_reaping_at_another_group(with_provider, store, tmp_path):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        found, _ = killed_runner(store)
        path = store / "boxes" / f"{found['id']}.json"
        label = json.loads(path.read_text())
        label["groups"] = list(sandbox.group.paths)
        path.write_text(json.dumps(label))
        assert len(await provider.reap(ReapPolicy())) == 1
        assert (await sandbox.exec("true")).ok
        # Its launcher knew them without the label.
        wait_until(lambda: gone(found["launcher"]))
        assert not any(Path(group).exists() for group in found["groups"])

    with_provider(check)


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with users need root")
def test_a_label_cannot_point_reaping_at_another_process(store):
    found, _ = killed_runner(store)
    wait_until(lambda: gone(found["launcher"]))
    path = store / "boxes" / f"{found['id']}.json"
    label = json.loads(path.read_text())
    path.write_text(json.dumps({**label, "launcher": "../../another"}))
    assert reap(store) == []
    path.write_text(json.dumps(label))
    assert [record.id for record in reap(store)] == [found["id"]]
    assert list((store / "launchers").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with users need root")
def test_a_launcher_that_hangs_is_killed(store, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_local.store.reap._END_SECONDS", 0.1)
    found, members = killed_runner(store, state="stopped-launcher")
    assert not gone(found["launcher"])
    assert [record.id for record in reap(store)] == [found["id"]]
    assert gone(found["launcher"])
    wait_until(lambda: all(gone(pid) for pid in members))
    assert list((store / "launchers").iterdir()) == []


def test_children_are_ended_where_the_kernel_keeps_no_list_of_them():
    script = """
import os
from benchflow_sandbox_local.launcher_process import processes
processes._CHILDREN = "/proc/none"
pid = os.posix_spawn("/bin/sleep", ["sleep", "86399"], {})
processes.end_children(())
assert not os.path.exists(f"/proc/{pid}")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_sandbox_of_an_unknown_owner_goes_when_it_is_overdue_and_the_operator_says_so():
    given = {"id": "a", "provider": "local", "owner_alive": None, "created_at": 0}
    record = SandboxRecord(**given, identity=RolloutIdentity(deadline=10))
    assert not record.wanted(ReapPolicy(), 11)
    assert not record.wanted(ReapPolicy(overdue=True), 9)
    assert record.wanted(ReapPolicy(overdue=True), 11)


def test_a_runner_that_ends_by_a_signal_takes_its_boxes_along(store):
    if os.geteuid() != 0:
        pytest.skip("sandboxes with users need root")
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(store), "v1", "running"], stdout=subprocess.PIPE
    )
    found = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.wait()
    process.stdout.close()
    wait_until(lambda: gone(found["pid"]))
    reap(store)
    assert records(store) == []
