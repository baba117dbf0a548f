"""Doors by Daytona's secrets. Nothing here runs on Daytona."""

import asyncio
from datetime import UTC, datetime, timedelta

import daytona
import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import HostError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing_clouds.daytona_secrets import StoredSecret

HEADERS = {"Authorization": "Bearer t0ken"}


def spec_of(path, network="model-only", headers=None):
    door = Door(upstream="https://gw.example/r", headers=headers or HEADERS, path=path)
    return SandboxSpec(network=network, doors=(door,))


def test_the_sandbox_has_a_placeholder_and_the_secret_lives_as_long_as_it(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(spec_of("egress"))
        ((name, stored),) = server.secrets.stored.items()
        assert (stored.value, stored.hosts) == ("t0ken", ["gw.example"])
        given = server.made[sandbox.cloud_id].given
        assert given["secrets"] == [{"BENCHFLOW_0": name}]
        assert given["domainAllowList"] == "gw.example"
        inside = sandbox.spec.door("model").inside
        assert inside.headers == {"Authorization": f"Bearer {stored.placeholder}"}
        await sandbox.teardown()
        assert (server.made, server.secrets.stored) == ({}, {})

    with_provider(test)


@pytest.mark.parametrize(
    ("path", "network", "opened"),
    [("egress", "public", None), ("token", "model-only", "gw.example"), (None, "model-only", None)],
)
def test_the_network_is_opened_for_the_gateway_alone(with_provider, path, network, opened):
    async def test(provider, server):
        sandbox = await provider.create(spec_of(path, network))
        given = server.made[sandbox.cloud_id].given
        assert given.get("domainAllowList") == opened
        is_closed = network != "public" and opened is None
        assert bool(given.get("networkBlockAll")) == is_closed
        assert len(server.secrets.stored) == (path == "egress")

    with_provider(test)


def test_an_answer_that_is_lost_leaves_one_sandbox_with_its_secret(with_provider):
    async def test(provider, server):
        server.failures = [(500, {}, True)]
        sandbox = await provider.create(spec_of("egress"))
        assert server.creations == len(server.made) == len(server.secrets.stored) == 1
        (stored,) = server.secrets.stored.values()
        assert sandbox.spec.door("model").placeholder == stored.placeholder

    with_provider(test)


def test_a_sandbox_that_is_refused_leaves_no_secret(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError):
            await provider.create(spec_of("egress").model_copy(update={"image": "snapshot://no"}))
        assert (server.made, server.secrets.stored) == ({}, {})

    with_provider(test)


def test_other_headers_than_one_bearer_token_are_refused(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="X-Key"):
            await provider.create(spec_of("egress", headers={"X-Key": "k"}))
        assert (server.creations, server.secrets.stored) == (0, {})

    with_provider(test)


def test_the_reaper_deletes_the_secrets_of_a_sandbox_and_those_whose_token_has_ended(
    with_provider,
):
    def add(server, name, hours):
        created = datetime.now(UTC) - timedelta(hours=hours)
        server.secrets.stored[name] = StoredSecret(name, "v", [], created=created)

    async def test(provider, server):
        add(server, "benchflow_old_model", 25)
        add(server, "benchflow_other_model", 1)
        add(server, "of-a-user", 1000)
        sandbox = await provider.create(spec_of("egress"))
        await provider._cloud.delete(sandbox.cloud_id)
        assert server.secrets.stored.keys() == {"benchflow_other_model", "of-a-user"}

    with_provider(test)


def test_our_server_refuses_what_daytona_refuses(with_provider):
    async def test(provider, server):
        secrets = provider._cloud._sdk().secret
        for hosts in (["gw.example:8443"], ["https://gw.example"]):
            with pytest.raises(Exception, match="400"):
                await secrets.create(daytona.CreateSecretParams(name="a", value="v", hosts=hosts))
        params = daytona.CreateSandboxFromSnapshotParams(secrets={"A": "missing"})
        with pytest.raises(daytona.DaytonaError, match="missing"):
            await provider._cloud._sdk().create(params)
        assert (server.creations, server.secrets.stored) == (0, {})

    with_provider(test)


def test_a_server_of_secrets_that_cannot_be_reached_is_a_typed_error():
    from benchflow_sandbox_daytona import DaytonaProvider  # noqa: PLC0415

    async def test():
        url = "http://127.0.0.1:1"
        async with DaytonaProvider(api_key="k", api_url=url) as provider:
            with pytest.raises(HostError, match="Daytona"):
                await provider._cloud.create(spec_of("egress"), key="k", labels={}, lifetime=60)

    asyncio.run(test())
