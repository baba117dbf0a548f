"""Faults of a broker: clients that go away, a broker that is killed, tokens of other rollouts."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from benchflow_adapters_nemo_gym import CommandRequest, LeaseRequest, SandboxBroker
from benchflow_adapters_nemo_gym.broker_app import create_broker_app
from benchflow_adapters_nemo_gym.broker_client import BrokerClient
from benchflow_adapters_nemo_gym.descriptor import SessionSigner
from benchflow_contracts import (
    BenchFlowError,
    ExecResult,
    HostError,
    RolloutIdentity,
    Sandbox,
    SandboxLostError,
    SandboxSpec,
    TransferError,
    UsageError,
)
from benchflow_sandbox_local import LocalProvider
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider
from nemo_broker_parts import TOKEN, in_loop, serving_app  # type: ignore[import-untyped,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Coroutine

SECRET = b"a secret of tests only"


def request(rollout: str) -> LeaseRequest:
    return LeaseRequest(spec=SandboxSpec(), identity=RolloutIdentity(rollout=rollout))


class Program:
    """A command of a fake sandbox that runs until it is killed."""

    def __init__(self, provider: FakeSandboxProvider) -> None:
        self.has_begun, self.was_killed = asyncio.Event(), asyncio.Event()
        provider.on("forever", self.run)

    async def run(self, _: FakeCall) -> ExecResult:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.was_killed.set()
        raise AssertionError


@in_loop
async def test_a_command_ends_when_its_client_goes_away() -> None:
    provider = FakeSandboxProvider()
    program = Program(provider)
    async with serving_app(create_broker_app(SandboxBroker(provider), [TOKEN])) as url:
        client = BrokerClient(url, TOKEN)
        lease = await client.acquire(request("r"))

        async def call() -> None:
            await client.exec(lease.ref, CommandRequest(cmd="forever"))

        async with asyncio.TaskGroup() as tasks:
            calling = tasks.create_task(call())
            await program.has_begun.wait()
            calling.cancel()
        await program.was_killed.wait()
        assert (await client.exec(lease.ref, CommandRequest(cmd="echo on"))).stdout == "on\n"
        await client.aclose()


@in_loop
async def test_a_release_during_a_call_ends_the_call_and_a_second_release_has_no_effect() -> None:
    provider = FakeSandboxProvider()
    program = Program(provider)
    async with serving_app(create_broker_app(SandboxBroker(provider), [TOKEN])) as url:
        client, other = BrokerClient(url, TOKEN), BrokerClient(url, TOKEN)
        lease = await client.acquire(request("r"))

        async def call() -> None:
            with pytest.raises(SandboxLostError, match="ended during the call"):
                await client.exec(lease.ref, CommandRequest(cmd="forever"))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call())
            await program.has_begun.wait()
            await other.release(lease.ref)
            await other.release(lease.ref)
        assert provider.live == []
        await client.aclose()
        await other.aclose()


@in_loop
async def test_the_token_of_a_rollout_uses_its_sandboxes_and_nothing_else(tmp_path: Path) -> None:
    app = create_broker_app(SandboxBroker(FakeSandboxProvider()), [TOKEN], secret=SECRET)
    signer = SessionSigner(SECRET)
    (tmp_path / "f").write_text("text")
    async with serving_app(app) as url:
        whole = BrokerClient(url, TOKEN)
        own, other = await whole.acquire(request("own")), await whole.acquire(request("other"))
        client = BrokerClient(url, signer.sign("own", "broker"))
        assert (await client.exec(own.ref, CommandRequest(cmd="echo hi"))).stdout == "hi\n"
        calls: list[Coroutine[Any, Any, object]] = [
            client.exec(other.ref, CommandRequest(cmd="true")),
            client.upload(other.ref, tmp_path / "f", "/f"),
            client.download(other.ref, "/etc/passwd", tmp_path / "out"),
            client.lease(other.ref),
            client.status(other.ref),
            client.release(other.ref),
            client.acquire(request("own")),
            client.acquire(request("third")),
            client.release_rollout("other"),
        ]
        for call in calls:
            with pytest.raises(BenchFlowError):
                await call
        with pytest.raises(SandboxLostError, match="unknown"):
            await client.exec(other.ref, CommandRequest(cmd="true"))
        for wrong in (signer.sign("own", "mcp"), SessionSigner(b"x" * 16).sign("own", "broker")):
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {wrong}"}) as http:
                assert (await http.get(f"{url}/v1/leases/{own.ref}")).status_code == 401
        assert await whole.status(other.ref) == "running"
        await client.aclose()
        await whole.aclose()


async def lent(provider: FakeSandboxProvider, uses: list[int]) -> tuple[SandboxBroker, Sandbox]:
    """Return a broker that only lends, and the sandbox that it lends to the rollout `r`."""
    sandbox = await provider.create(SandboxSpec(user="agent"))
    broker = SandboxBroker(None)
    broker.lend(sandbox, RolloutIdentity(rollout="r"), lambda: uses.append(1))
    return broker, sandbox


@in_loop
async def test_a_lent_sandbox_outlives_the_borrower_and_the_broker() -> None:
    provider, uses = FakeSandboxProvider(), list[int]()
    broker, _ = await lent(provider, uses)
    lease = await broker.acquire(request("r"))
    assert lease.expires_at is None
    assert (await broker.exec(lease.ref, CommandRequest(cmd="echo hi"))).stdout == "hi\n"
    assert len(uses) == 2
    await broker.release(lease.ref)
    assert len(provider.live) == 1
    with pytest.raises(UsageError, match="makes none"):
        await broker.acquire(request("r"))
    with pytest.raises(UsageError, match="makes none"):
        await broker.acquire(request("other"))
    await broker.aclose()
    assert len(provider.live) == 1


@in_loop
async def test_a_recall_ends_the_calls_of_the_borrower_at_once() -> None:
    provider, uses = FakeSandboxProvider(), list[int]()
    broker, _ = await lent(provider, uses)
    program = Program(provider)
    lease = await broker.acquire(request("r"))

    async def call() -> None:
        with pytest.raises(SandboxLostError, match="during the call"):
            await broker.exec(lease.ref, CommandRequest(cmd="forever"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(call())
        await program.has_begun.wait()
        before = len(uses)
        await broker.reap()
        assert len(uses) == before + 1
        broker.recall("r")
        broker.recall("r")
    await program.was_killed.wait()
    with pytest.raises(SandboxLostError):
        await broker.exec(lease.ref, CommandRequest(cmd="true"))


@in_loop
async def test_a_borrower_has_the_rights_of_the_user_and_no_more(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        provider = LocalProvider()
        sandbox = await provider.create(SandboxSpec(user="nobody"))
        await sandbox.exec("echo secret > /root/f; chmod 600 /root/f", user="root")
        await sandbox.exec("ln -s /root/f /tmp/link")
        broker = SandboxBroker(None)
        ref = broker.lend(sandbox, RolloutIdentity(rollout="r"), lambda: None).ref
        content = bytes(range(256)) * 10_000
        (tmp_path / "in").write_bytes(content)
        await broker.upload(ref, tmp_path / "in", "/tmp/new/in")
        await broker.download(ref, "/tmp/new/in", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == content
        for user in ("root", "0"):
            with pytest.raises(UsageError, match="lent to the user 'nobody'"):
                await broker.exec(ref, CommandRequest(cmd="true", user=user))
        for path in ("/root/f", "/tmp/link", "/tmp", "/dev/zero", "/missing"):
            with pytest.raises(TransferError):
                await broker.download(ref, path, tmp_path / "stolen")
        await sandbox.exec("truncate -s 1T /tmp/sparse")
        for path in ("/tmp/new/in", "/tmp/sparse"):
            with pytest.raises(TransferError, match="larger than 100"):
                await broker.download(ref, path, tmp_path / "stolen", max_bytes=100)
        for path in ("/root/f", "/etc/passwd", "/tmp"):
            with pytest.raises(TransferError):
                await broker.upload(ref, tmp_path / "in", path)
        assert not (tmp_path / "stolen").exists()
        assert (await sandbox.exec("cat /root/f", user="root")).stdout == "secret\n"
        await broker.aclose()
        await sandbox.teardown()
        await provider.aclose()


PROGRAM = """
import asyncio
import sys
from benchflow_adapters_nemo_gym import LeaseRequest, SandboxBroker
from benchflow_contracts import RolloutIdentity, SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    async with SandboxBroker(LocalProvider()).running() as broker:
        identity = RolloutIdentity(rollout="killed")
        lease = await broker.acquire(LeaseRequest(spec=SandboxSpec(), identity=identity))
        print(lease.sandbox, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_next_broker_deletes_the_sandboxes_of_a_broker_that_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        sandbox = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    assert sandbox

    async def names() -> list[str]:
        provider = LocalProvider()
        found = [record.id async for record in provider.sandboxes()]
        await provider.aclose()
        return found

    async def main() -> None:
        assert sandbox in await names()
        async with SandboxBroker(LocalProvider()).running():
            assert sandbox not in await names()

    asyncio.run(main())


@in_loop
async def test_a_call_to_a_broker_that_was_killed_is_an_error_of_the_host() -> None:
    app = create_broker_app(SandboxBroker(FakeSandboxProvider()), [TOKEN])
    async with serving_app(app) as url:
        client = BrokerClient(url, TOKEN)
        lease = await client.acquire(request("r"))
    with pytest.raises(HostError, match="does not answer"):
        await client.exec(lease.ref, CommandRequest(cmd="true"))
    await client.aclose()
