"""Sandboxes of a cloud account: none is left, doubled or lost for a fault of one call."""

import asyncio
import time

import pytest
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    QuotaError,
    SandboxLostError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_remote import CloudRecord, RemoteProvider

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


def test_a_cloud_that_never_answers_a_creation_is_a_fault_of_the_moment(with_provider, monkeypatch):
    monkeypatch.setattr(RemoteProvider, "create_seconds", 0.05)

    async def test(provider):
        async def silent(spec, **options):
            await asyncio.Event().wait()

        provider.cloud.create = silent
        with pytest.raises(HostError, match=r"within 0.05 s: create a sandbox") as error:
            await provider.create(SPEC)
        assert error.value.retryable
        assert await listed(provider) == []

    with_provider(test)


@pytest.mark.parametrize("kind", [CredentialsError, QuotaError])
def test_an_account_that_refuses_is_not_asked_again(with_provider, kind):
    async def test(provider):
        wrong = kind("the account refuses")
        provider.cloud.failures = [(wrong, None), (HostError("not reached"), None)]
        with pytest.raises(kind):
            await provider.create(SPEC)
        assert len(provider.cloud.failures) == 1

    with_provider(test)


def test_a_runner_extends_its_sandboxes_while_it_runs_and_not_longer(with_provider):
    async def test(provider):
        cloud = provider.cloud
        first, second = await provider.create(SPEC), await provider.create(SPEC)
        extended = set()
        while len(extended) < 2:
            extended.add(await cloud.extensions.get())
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


def test_a_key_that_expires_ends_the_sandbox_with_the_reason(with_provider):
    async def test(provider):
        sandbox = await provider.create(SPEC)
        (cloud,) = provider.cloud.made.values()

        async def dial():
            raise CredentialsError("the key has expired")

        sandbox._box.session._dial = dial
        await cloud.cut()
        with pytest.raises(CredentialsError, match="the key has expired"):
            await sandbox.exec("sleep 100")
        with pytest.raises(CredentialsError):
            await sandbox.exec("true")

    with_provider(test)


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_lifetimes_do_not_depend_on_the_clock_of_the_cloud(with_provider, monkeypatch, skew):
    async def test(provider):
        cloud, now = provider.cloud, time.time()
        sandbox = await provider.create(SPEC, identity=RolloutIdentity(deadline=int(now) + 10))
        record = cloud.records[sandbox.id]
        cloud.records[sandbox.id] = CloudRecord(record.id, record.labels, now + skew)
        assert await cloud.extensions.get() == (sandbox.id, 0.4)
        # The clock of another runner is two minutes ahead.
        monkeypatch.setattr(time, "time", lambda: now + 120)
        assert await provider.reap(ReapPolicy(overdue=True)) == []
        monkeypatch.setattr(time, "time", lambda: now + 311)
        assert len(await provider.reap(ReapPolicy(overdue=True))) == 1

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
