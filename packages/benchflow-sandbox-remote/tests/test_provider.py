"""Sandboxes of a cloud account: none is left, doubled or lost for a fault of one call."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    SandboxLostError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_remote import RemoteProvider

SPEC = SandboxSpec()


async def listed(provider, **options):
    return [record async for record in provider.sandboxes(**options)]


def test_an_answer_that_is_lost_leaves_one_sandbox(with_provider):
    async def test(provider):
        provider.cloud.failures = [(None, HostError("the answer was lost"))]
        sandbox = await provider.create(SPEC)
        assert (await sandbox.exec("echo here")).stdout == "here\n"
        assert [record.id for record in await listed(provider)] == [sandbox.id]

    with_provider(test)


def test_a_cloud_without_room_is_asked_again_when_it_says(with_provider):
    async def test(provider):
        full = CapacityError("429", retry_after=0.05)
        provider.cloud.failures = [(full, None)] * 3
        started = time.monotonic()
        await provider.create(SPEC)
        assert time.monotonic() - started >= 0.15

    with_provider(test)


def test_wrong_credentials_are_not_tried_again(with_provider):
    async def test(provider):
        wrong = CredentialsError("the key is refused")
        provider.cloud.failures = [(wrong, None), (HostError("not reached"), None)]
        with pytest.raises(CredentialsError):
            await provider.create(SPEC)
        assert len(provider.cloud.failures) == 1

    with_provider(test)


def test_a_runner_extends_its_sandboxes_while_it_runs_and_not_longer(with_provider):
    async def test(provider):
        cloud = provider.cloud
        first, second = await provider.create(SPEC), await provider.create(SPEC)
        extended = {await cloud.extensions.get() for _ in range(4)}
        assert extended == {(first.id, 0.4), (second.id, 0.4)}
        await first.teardown()
        while not cloud.extensions.empty():
            cloud.extensions.get_nowait()
        later = {await cloud.extensions.get() for _ in range(3)}
        assert later == {(second.id, 0.4)}
        await provider.aclose()
        while not cloud.extensions.empty():
            cloud.extensions.get_nowait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cloud.extensions.get(), 1)

    with_provider(test, lifetime=0.4)


def test_sandboxes_of_every_runner_are_listed_and_only_overdue_ones_are_reaped(with_provider):
    async def test(provider):
        cloud = provider.cloud
        other = RemoteProvider("local-cloud", cloud, provider.static_capabilities)
        mine = await provider.create(SPEC, identity=RolloutIdentity(scope="a", task="x"))
        late = await other.create(SPEC, identity=RolloutIdentity(scope="b", deadline=1))
        await other.create(SPEC, identity=RolloutIdentity(scope="b"))
        records = {record.id: record for record in await listed(provider)}
        assert len(records) == 3
        assert (records[mine.id].owner_alive, records[late.id].owner_alive) == (True, None)
        assert records[mine.id].identity.task == "x"
        assert [each.id for each in await listed(provider, scope="a")] == [mine.id]
        assert await provider.reap(ReapPolicy()) == []
        reaped = await provider.reap(ReapPolicy(overdue=True))
        assert [record.id for record in reaped] == [late.id]
        assert len(await listed(provider)) == 2
        with pytest.raises(SandboxLostError, match="the cloud has deleted the sandbox"):
            await late.exec("true")
        await other.aclose()

    with_provider(test)
