"""E2B's SDK against our server: faults of the account, of the connection and of the runner."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b import E2bProvider

SPEC = SandboxSpec()


def test_a_command_has_separate_outputs_an_exit_code_and_the_agents_user(with_provider):
    async def test(provider, server):
        del server
        sandbox = await provider.create(SPEC)
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)

    with_provider(test)


def test_the_labels_of_a_rollout_are_the_metadata_of_its_sandbox(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC, identity=RolloutIdentity(scope="job", task="a/b ü"))
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert (record.id, record.identity.task) == (sandbox.id, "a/b ü")
        assert server.made[sandbox.id].metadata["benchflow.scope"] == "job"
        await sandbox.teardown()
        assert server.made == {}

    with_provider(test)


def test_an_answer_that_is_lost_leaves_one_sandbox(with_provider):
    async def test(provider, server):
        server.failures = [(500, {}, True)]
        await provider.create(SPEC)
        assert server.creations == 1
        assert len(server.made) == 1

    with_provider(test)


def test_a_storm_of_429_ends_in_one_sandbox(with_provider):
    async def test(provider, server):
        server.failures = [(429, {"retry-after": "1"}, False)] * 2
        await provider.create(SPEC)
        assert server.creations == 1

    with_provider(test)


def test_a_wrong_key_ends_the_first_call(with_provider):
    async def test(provider, server):
        with pytest.raises(CredentialsError, match="E2B"):
            await provider.create(SPEC)
        assert server.creations == 0

    with_provider(test, key="e2b_wrong")


def test_a_missing_key_is_said_before_anything_runs(monkeypatch):
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(CredentialsError) as error:
        asyncio.run(E2bProvider().ready())
    assert "E2B_API_KEY" in error.value.hint


def test_a_template_that_does_not_exist_is_refused(with_provider):
    async def test(provider, server):
        del server
        with pytest.raises(SandboxUnsupportedError, match="template"):
            await provider.create(SandboxSpec(image="template://no-such-template"))

    with_provider(test)


def test_a_sandbox_that_the_account_lost_says_so_at_once(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        await server.remove(sandbox.id)
        started = time.monotonic()
        with pytest.raises(SandboxLostError):
            await sandbox.exec("true")
        assert time.monotonic() - started < 60

    with_provider(test)


def test_streams_that_the_server_ends_lose_no_byte(with_provider):
    # More than the pipes and the link hold.
    numbers = b"".join(b"%d\n" % number for number in range(1, 400_001))

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await sandbox.spawn("seq 1 400000")
        data = bytearray()
        while piece := await process.stdout.read(4096):
            if len(data) % (1 << 19) < 4096:
                await server.made[sandbox.id].service.close()
            data += piece
        assert bytes(data) == numbers
        assert sandbox.connections > 1

    with_provider(test)


def test_a_runner_that_is_killed_leaves_no_sandbox_after_its_lifetime(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        provider._heartbeat.cancel()
        ends = server.made[sandbox.id].ends.timestamp()
        async with asyncio.timeout(30):
            await server.removed.wait()
        assert server.made == {}
        assert time.time() - ends < 5

    with_provider(test, lifetime=10.0)


@pytest.mark.usefixtures("criu")
def test_a_live_fork_continues_each_stream_without_a_lost_byte(with_provider):
    # More than the pipes and the link hold, so that output waits everywhere.
    numbers = b"".join(b"%d\n" % number for number in range(1, 200_001))

    async def rest(process):
        data = bytearray()
        while piece := await process.stdout.read():
            data += piece
        return bytes(data)

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await sandbox.spawn("seq 1 200000; read word; echo $word; exit 7")
        start = await process.stdout.read(1000)
        image = await sandbox.snapshot("live")
        children = [await provider.create(SPEC, image=image) for _ in range(2)]
        ends = [process, *[await child.attach(process.id) for child in children]]
        for number, each in enumerate(ends):
            await each.stdin.write(b"%d\n" % number)
        for number, each in enumerate(ends):
            assert start + await rest(each) == numbers + b"%d\n" % number
            assert await each.wait() == 7
        assert len(server.made) == 3

    with_provider(test)


@pytest.mark.usefixtures("criu")
def test_snapshots_are_deleted_with_their_provider(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        await sandbox.snapshot("live")
        await sandbox.snapshot()
        assert len(server.snapshots) == 2
        await provider.aclose()
        assert (server.snapshots, server.made) == ({}, {})

    with_provider(test)


@pytest.mark.parametrize(
    ("status", "error"), [(400, SandboxUnsupportedError), (409, CapacityError)]
)
def test_a_snapshot_of_files_that_e2b_refuses_is_a_typed_error(with_provider, status, error):
    async def test(provider, server):
        server.refused_snapshots = (status, "not for this team")
        sandbox = await provider.create(SPEC)
        with pytest.raises(error, match="not for this team"):
            await sandbox.snapshot()
        assert (await sandbox.exec("echo on")).stdout == "on\n"

    with_provider(test)
