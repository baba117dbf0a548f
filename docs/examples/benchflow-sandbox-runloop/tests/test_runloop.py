"""Runloop's SDK against a small server of these tests. Nothing here runs on Runloop."""

import asyncio

import pytest
from benchflow_contracts.errors import (
    CredentialsError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_runloop import RunloopProvider
from stand_in import stand_in


@pytest.fixture
def with_provider():
    def run(test, key="right", policy="npo_closed", **options):
        async def main():
            async with (
                LocalProvider() as local,
                stand_in(local) as (server, url),
                RunloopProvider(api_key=key, api_url=url, policy=policy, **options) as provider,
            ):
                return await test(provider, server)

        return asyncio.run(main())

    return run


def test_a_sandbox_runs_commands_lists_itself_and_is_deleted(with_provider, tmp_path):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="job"))
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)
        (tmp_path / "in").write_bytes(bytes(range(256)) * 1000)
        await sandbox.upload(tmp_path / "in", "/workspace/data", user="agent")
        await sandbox.download("/workspace/data", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert record.id == sandbox.id
        await sandbox.teardown()
        assert [each async for each in provider.sandboxes()] == []
        assert server.devboxes[sandbox.id].status == "shutdown"

    with_provider(test)


def test_a_devbox_has_an_idle_time_and_the_policy_of_its_network(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec(network="none"))
        given = server.devboxes[sandbox.id].given["launch_parameters"]
        idle = {"idle_time_seconds": 1, "on_idle": "shutdown"}
        assert given["lifecycle"] == {"after_idle": idle}
        assert given["network_policy_id"] == "npo_closed"
        async with asyncio.timeout(30):
            while not server.devboxes[sandbox.id].alive:
                await sandbox.exec("true")

    with_provider(test, lifetime=1.0)


def test_streams_that_runloop_ends_lose_no_byte(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn("cat")
        for number in range(5):
            line = b"%d\n" % number * 10_000
            await process.stdin.write(line)
            await server.cut()
            data = b""
            while len(data) < len(line):
                data += await process.stdout.read()
            assert data == line
        await process.stdin.aclose()
        assert await process.wait() == 0
        assert sandbox.connections > 1

    with_provider(test)


@pytest.mark.parametrize("failure", [(502, {}), (429, {"retry-after": "1"})])
def test_an_answer_that_is_lost_or_too_early_leaves_one_devbox(with_provider, failure):
    async def test(provider, server):
        server.failures = [failure] * 3
        sandbox = await provider.create(SandboxSpec())
        assert list(server.devboxes) == [sandbox.id]
        assert server.failures == []

    with_provider(test)


def test_a_blueprint_that_does_not_exist_is_refused(with_provider):
    async def test(provider, server):
        server.failures = [(404, {})]
        with pytest.raises(SandboxUnsupportedError, match="Runloop"):
            await provider.create(SandboxSpec(image="none"))

    with_provider(test)


def test_a_devbox_that_has_ended_says_so(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec())
        await server.shutdown(server.devboxes[sandbox.id])
        with pytest.raises(SandboxLostError, match="state shutdown"):
            await sandbox.exec("true")

    with_provider(test)


def test_a_wrong_key_and_a_network_without_a_policy_are_refused(with_provider, monkeypatch):
    monkeypatch.delenv("RUNLOOP_NETWORK_POLICY", raising=False)

    async def wrong(provider, server):
        with pytest.raises(CredentialsError, match="Runloop"):
            await provider.create(SandboxSpec())
        assert server.devboxes == {}

    async def without(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="network"):
            await provider.create(SandboxSpec(network="none"))
        assert server.devboxes == {}

    with_provider(wrong, key="wrong")
    with_provider(without, policy=None)
