"""Modal's snapshots of memory, against our server. Nothing here runs on Modal."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing_clouds.grpc_service import Refusal
from benchflow_testing_clouds.modal_memory import LIFETIME, MemorySnapshots
from grpclib.const import Status

SPEC = SandboxSpec()
SAVES = 'read -r kept; echo ready; while read -r line; do echo "$kept $line"; done'


async def ready(sandbox):
    """Start a process that keeps a word in its memory."""
    process = await sandbox.spawn(SAVES)
    await process.stdin.write(b"word\n")
    assert await process.stdout.read(6) == b"ready\n"
    return process


async def said(process, line):
    """Return what the process answers to a line."""
    await process.stdin.write(line + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        answer += await process.stdout.read(64)
    return answer


def test_a_process_continues_in_the_sandbox_and_in_one_of_its_snapshot(with_provider):
    async def test(provider, server):
        can = await provider.capabilities()
        assert (can.snapshot_levels, can.live_engine) == ({"filesystem", "live"}, "modal")
        assert "live" not in can.notes
        assert server.made == {}  # those of the probe
        identity = RolloutIdentity(scope="job", task="one")
        sandbox = await provider.create(SPEC, identity=identity)
        process, before = await ready(sandbox), sandbox.cloud_id
        image = await sandbox.snapshot("live")
        assert sandbox.cloud_id != before  # Modal ends the sandbox of a snapshot
        other = RolloutIdentity(scope="job", task="two")
        child = await provider.create(SPEC, image=image, identity=other)
        assert await said(await child.attach(process.id), b"child") == b"word child\n"
        assert await said(process, b"parent") == b"word parent\n"
        assert await said(process, b"again") == b"word again\n"
        records = {each.id: each.identity.task async for each in provider.sandboxes(scope="job")}
        assert records == {sandbox.cloud_id: "one", child.cloud_id: "two"}
        await provider.discard(image)
        second = await child.snapshot("live")
        assert server.memory.every[second.ref].expires_at < time.time() + LIFETIME
        expiries = {each.expires_at for each in list(server.memory.every.values())[-2:]}
        assert len(expiries) == 1  # one of a restored sandbox ends with the first one

    with_provider(test, memory=True)


def test_an_account_without_them_has_snapshots_of_files_only(with_provider):
    async def test(provider, server):
        can = await provider.capabilities()
        assert (can.snapshot_levels, can.live_engine) == ({"filesystem"}, None)
        assert "no snapshots of memory" in can.notes["live"]
        assert server.creations == 0
        sandbox = await provider.create(SPEC)
        assert not server.made[sandbox.cloud_id].definition.enable_snapshot
        with pytest.raises(SandboxUnsupportedError, match="live"):
            await sandbox.snapshot("live")

    with_provider(test)


def test_a_snapshot_whose_processes_do_not_continue_is_not_used(with_provider, monkeypatch):
    restore = MemorySnapshots.restore

    async def restore_files(self, snapshot):
        sandbox, entry = await restore(self, snapshot)
        await sandbox.kill_all()
        return sandbox, entry

    monkeypatch.setattr(MemorySnapshots, "restore", restore_files)

    async def test(provider, server):
        can = await provider.capabilities()
        assert (can.snapshot_levels, can.live_engine) == ({"filesystem"}, None)
        assert server.made == {}
        sandbox = await provider.create(SPEC)
        assert (await sandbox.exec("echo runs")).stdout == "runs\n"

    with_provider(test, memory=True, lost_after=2.0)


def test_a_link_that_a_command_of_modal_started_would_not_be_restored(with_provider, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_modal.cloud.entry_order", tuple)

    async def test(provider, server):
        del server
        can = await provider.capabilities()
        assert can.live_engine is None

    with_provider(test, memory=True, lost_after=2.0)


def test_no_snapshot_is_taken_while_a_command_of_modal_runs(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await ready(sandbox)
        running = await sandbox._cloud._sandbox.exec.aio("sleep", "600")
        with pytest.raises(SandboxError, match="still running"):
            await sandbox.snapshot("live")
        assert sandbox.cloud_id in server.made
        assert await said(process, b"on") == b"word on\n"
        del running

    with_provider(test, memory=True)


def test_a_live_snapshot_and_a_heartbeat_wait_for_each_other(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await ready(sandbox)
        # The command of a heartbeat does not end before the test says so.
        slow = "#!/bin/sh\necho > /begun; read -r _ < /hold\n"
        install = f"mkfifo /begun /hold; printf '{slow}' > /bin/true.new; chmod 755 /bin/true.new"
        done = await sandbox.exec(f"{install}; mv /bin/true.new /usr/local/bin/true", user="root")
        assert done.exit_code == 0, done
        await sandbox.exec("read -r _ < /begun", user="root")
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(sandbox.snapshot("live"))
            await asyncio.wait([taking], timeout=0.3)
            assert not taking.done()
            assert sandbox.cloud_id in server.made
            await sandbox.exec("rm /usr/local/bin/true; echo > /hold", user="root")
        assert await said(process, b"on") == b"word on\n"

    with_provider(test, memory=True, lifetime=3.0)


def test_a_stopped_process_is_stopped_in_the_sandbox_and_in_one_of_its_snapshot(with_provider):
    async def test(provider, server):
        del server
        sandbox = await provider.create(SPEC)
        process = await ready(sandbox)
        state = f"cut -d' ' -f3 /proc/{process.pid}/stat"
        await sandbox.exec(f"kill -STOP {process.pid}")
        image = await sandbox.snapshot("live")
        child = await provider.create(SPEC, image=image)
        assert (await child.exec(state)).stdout == "T\n"
        assert (await sandbox.exec(state)).stdout == "T\n"
        await child.exec(f"kill -CONT {process.pid}")
        assert await said(await child.attach(process.id), b"child") == b"word child\n"

    with_provider(test, memory=True)


def test_an_answer_of_a_restore_that_is_lost_leaves_one_sandbox(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await ready(sandbox)
        image = await sandbox.snapshot("live")
        server.failures = [(Refusal(Status.UNAVAILABLE, "lost"), True)]
        child = await provider.create(SPEC, image=image)
        assert set(server.made) == {sandbox.cloud_id, child.cloud_id}
        assert await said(await child.attach(process.id), b"child") == b"word child\n"

    with_provider(test, memory=True)


def test_a_copy_has_the_network_of_its_snapshot(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        image = await sandbox.snapshot("live")
        with pytest.raises(SandboxUnsupportedError, match="network"):
            await provider.create(SPEC.model_copy(update={"network": "public"}), image=image)
        assert set(server.made) == {sandbox.cloud_id}

    with_provider(test, memory=True)
