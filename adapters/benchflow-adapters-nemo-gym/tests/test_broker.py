"""The broker: sandboxes by reference, with a lease for each rollout."""

import asyncio
from pathlib import Path

import pytest
from benchflow_adapters_nemo_gym import CommandRequest, LeaseRequest, SandboxBroker
from benchflow_contracts import (
    CapacityError,
    ExecResult,
    RolloutIdentity,
    SandboxError,
    SandboxLostError,
    SandboxSpec,
    TransferError,
)
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider
from nemo_broker_parts import in_loop  # type: ignore[import-untyped,unused-ignore]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider() -> FakeSandboxProvider:
    return FakeSandboxProvider()


@pytest.fixture
def broker(provider: FakeSandboxProvider, clock: Clock) -> SandboxBroker:
    return SandboxBroker(provider, idle_sec=60, clock=clock)


def request(
    rollout: str | None = "r", name: str = "main", *, deadline: int | None = None
) -> LeaseRequest:
    identity = RolloutIdentity(rollout=rollout, deadline=deadline)
    return LeaseRequest(spec=SandboxSpec(), identity=identity, name=name)


@in_loop
async def test_a_repeated_request_of_a_rollout_gets_the_same_sandbox(
    broker: SandboxBroker, provider: FakeSandboxProvider
) -> None:
    async with asyncio.TaskGroup() as tasks:
        leases = [tasks.create_task(broker.acquire(request())) for _ in range(2)]
    first, second = (task.result() for task in leases)
    other = await broker.acquire(request(name="grading"))
    assert first.ref == second.ref != other.ref
    assert len(provider.live) == 2
    assert {record.identity.rollout async for record in provider.sandboxes()} == {"r"}


@in_loop
async def test_requests_without_a_rollout_get_sandboxes_of_their_own(broker: SandboxBroker) -> None:
    first, second = await broker.acquire(request(None)), await broker.acquire(request(None))
    assert first.rollout != second.rollout


@in_loop
async def test_a_call_to_one_sandbox_renews_the_whole_rollout(
    broker: SandboxBroker, provider: FakeSandboxProvider, clock: Clock
) -> None:
    used = await broker.acquire(request())
    await broker.acquire(request(name="grading"))
    await broker.acquire(request("abandoned"))
    clock.now += 50
    await broker.exec(used.ref, CommandRequest(cmd="true"))
    clock.now += 50
    assert len(await broker.reap()) == 1
    assert len(provider.live) == 2
    clock.now += 60
    assert len(await broker.reap()) == 2
    assert provider.live == []


@in_loop
async def test_a_consumer_that_reconnects_in_time_keeps_its_sandbox(
    broker: SandboxBroker, clock: Clock
) -> None:
    lease = await broker.acquire(request())
    clock.now += 59
    again = await broker.lease(lease.ref)
    assert again.expires_at == clock.now + 60
    clock.now += 59
    assert await broker.reap() == []


@in_loop
async def test_a_running_call_keeps_its_lease_but_not_beyond_the_deadline(
    broker: SandboxBroker, provider: FakeSandboxProvider, clock: Clock
) -> None:
    lease = await broker.acquire(request(deadline=1500))
    has_begun = asyncio.Event()

    async def run_forever(_: FakeCall) -> ExecResult:
        has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    provider.on("forever", run_forever)

    async def call() -> None:
        with pytest.raises(SandboxLostError, match="ended during the call"):
            await broker.exec(lease.ref, CommandRequest(cmd="forever"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(call())
        await has_begun.wait()
        clock.now = 1499
        assert await broker.reap() == []
        clock.now = 1500
        assert len(await broker.reap()) == 1
    assert provider.live == []


@in_loop
async def test_a_released_reference_is_unknown(broker: SandboxBroker) -> None:
    lease = await broker.acquire(request())
    await broker.release(lease.ref)
    await broker.release(lease.ref)
    assert await broker.status(lease.ref) == "stopped"
    with pytest.raises(SandboxLostError):
        await broker.exec(lease.ref, CommandRequest(cmd="true"))
    assert (await broker.acquire(request())).ref != lease.ref


@in_loop
async def test_the_sandboxes_of_a_rollout_are_released_together(
    broker: SandboxBroker, provider: FakeSandboxProvider
) -> None:
    await broker.acquire(request())
    await broker.acquire(request(name="grading"))
    await broker.acquire(request("other"))
    await broker.release_rollout("r")
    await broker.release_rollout("r")
    assert len(provider.live) == 1


@in_loop
async def test_a_sandbox_that_cannot_be_deleted_is_deleted_by_a_later_reap(
    broker: SandboxBroker, provider: FakeSandboxProvider, clock: Clock
) -> None:
    lease = await broker.acquire(request())
    provider.faults.fail_on["teardown"] = SandboxError("engine is down")
    with pytest.raises(SandboxError, match="engine is down"):
        await broker.release(lease.ref)
    provider.faults.fail_on.clear()
    clock.now += 60
    assert len(await broker.reap()) == 1
    assert provider.live == []


@in_loop
async def test_a_sandbox_that_did_not_start_leaves_nothing(
    broker: SandboxBroker, provider: FakeSandboxProvider, clock: Clock
) -> None:
    provider.faults.fail_on["create"] = SandboxError("no memory")
    with pytest.raises(SandboxError, match="no memory"):
        await broker.acquire(request())
    provider.faults.fail_on.clear()
    lease = await broker.acquire(request())
    assert lease.expires_at == clock.now + 60


@in_loop
async def test_the_limit_of_sandboxes_is_kept(provider: FakeSandboxProvider) -> None:
    broker = SandboxBroker(provider, max_sandboxes=1)
    lease = await broker.acquire(request())
    with pytest.raises(CapacityError):
        await broker.acquire(request("other"))
    await broker.release(lease.ref)
    await broker.acquire(request("other"))


@in_loop
async def test_files_are_copied_in_and_out(broker: SandboxBroker, tmp_path: Path) -> None:
    lease = await broker.acquire(request())
    (tmp_path / "in").write_bytes(b"\x00\xff")
    (tmp_path / "out").write_bytes(b"old")
    await broker.upload(lease.ref, tmp_path / "in", "relative")
    await broker.download(lease.ref, f"{lease.workdir}/relative", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"\x00\xff"
    with pytest.raises(TransferError):
        await broker.upload(lease.ref, tmp_path, "directory")
    with pytest.raises(TransferError):
        await broker.download(lease.ref, "/missing", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"\x00\xff"
    names = [path.name for path in tmp_path.iterdir()]  # noqa: ASYNC240
    assert sorted(names) == ["in", "out"]


@in_loop
async def test_the_end_of_the_broker_deletes_every_sandbox(
    broker: SandboxBroker, provider: FakeSandboxProvider
) -> None:
    async with broker.running():
        await broker.acquire(request())
        assert len(provider.live) == 1
    assert provider.live == []
