"""E2B's SDK against our server: faults of the account, of the connection and of the runner."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import (
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
            await provider.create(SandboxSpec(image="no-such-template"))

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
    numbers = b"".join(b"%d\n" % number for number in range(1, 40_001))

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        process = await sandbox.spawn("seq 1 40000")
        data = bytearray()
        while piece := await process.stdout.read(4096):
            data += piece
            if len(data) % 5 == 0:
                await server.made[sandbox.id].service.close()
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
