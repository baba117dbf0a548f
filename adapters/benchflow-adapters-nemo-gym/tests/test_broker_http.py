"""The broker over HTTP: its client raises the errors and gets the bytes of the broker itself."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from benchflow_adapters_nemo_gym import CommandRequest, LeaseRequest, SandboxBroker
from benchflow_adapters_nemo_gym.broker_app import create_broker_app
from benchflow_adapters_nemo_gym.broker_client import BrokerClient, read_token
from benchflow_contracts import (
    CapacityError,
    HostError,
    RolloutIdentity,
    SandboxError,
    SandboxLostError,
    SandboxSpec,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    TransferError,
    UsageError,
)
from benchflow_testing.fakes import FakeSandboxProvider
from nemo_broker_parts import TOKEN, serving_app  # type: ignore[import-untyped,unused-ignore]


def play(
    script: Callable[[BrokerClient, FakeSandboxProvider, str], Awaitable[None]],
    max_sandboxes: int | None = None,
) -> None:
    """Run a script with a client of a broker that is served."""

    async def main() -> None:
        provider = FakeSandboxProvider()
        broker = SandboxBroker(provider, max_sandboxes=max_sandboxes)
        async with serving_app(create_broker_app(broker, [TOKEN])) as url:
            client = BrokerClient(url, TOKEN)
            try:
                await script(client, provider, url)
            finally:
                await client.aclose()
        assert provider.live == []

    asyncio.run(main())


def lease_of(rollout: str) -> LeaseRequest:
    return LeaseRequest(spec=SandboxSpec(), identity=RolloutIdentity(rollout=rollout))


def test_commands_and_files_cross_http_as_data(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (tmp_path / "in").write_bytes(content)

    async def script(client: BrokerClient, provider: FakeSandboxProvider, _: str) -> None:
        lease = await client.acquire(lease_of("r/1 é"))
        result = await client.exec(lease.ref, CommandRequest(cmd=("printf", "héllo")))
        assert (result.exit_code, result.stdout) == (0, "héllo")
        await client.upload(lease.ref, tmp_path / "in", "a b/ü.bin")
        await client.download(lease.ref, "a b/ü.bin", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == content
        assert await client.status(lease.ref) == "running"
        assert (await client.lease(lease.ref)).ref == lease.ref
        await client.release_rollout("r/1 é")
        assert await client.status(lease.ref) == "stopped"
        assert provider.live == []

    play(script)


def test_a_second_consumer_uses_a_sandbox_by_its_reference() -> None:
    async def script(client: BrokerClient, _: FakeSandboxProvider, url: str) -> None:
        lease = await client.acquire(lease_of("r"))
        await client.exec(lease.ref, CommandRequest(cmd="echo first > /tmp/f"))
        await client.aclose()
        second = BrokerClient(url, TOKEN)
        assert (await second.acquire(lease_of("r"))).ref == lease.ref
        seen = await second.exec(lease.ref, CommandRequest(cmd="cat /tmp/f"))
        assert seen.stdout == "first\n"
        await second.aclose()

    play(script)


@pytest.mark.parametrize(
    "error",
    [
        SandboxTimeoutError("slow"),
        SandboxUnsupportedError("lacking"),
        TransferError("link"),
        CapacityError("full"),
        SandboxError("broken"),
        HostError("no memory"),
    ],
)
def test_the_client_raises_the_error_of_the_provider(error: SandboxError) -> None:
    async def script(client: BrokerClient, provider: FakeSandboxProvider, _: str) -> None:
        lease = await client.acquire(lease_of("r"))
        provider.faults.fail_on["exec"] = error
        with pytest.raises(type(error), match=str(error)) as raised:
            await client.exec(lease.ref, CommandRequest(cmd="true"))
        assert type(raised.value) is type(error)
        assert raised.value.hint == error.hint

    play(script)


def test_an_unknown_reference_a_full_broker_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"12345")

    async def script(client: BrokerClient, _: FakeSandboxProvider, __: str) -> None:
        lease = await client.acquire(lease_of("r"))
        with pytest.raises(CapacityError):
            await client.acquire(lease_of("other"))
        with pytest.raises(TransferError):
            await client.download(lease.ref, "/missing", tmp_path / "out")
        await client.upload(lease.ref, tmp_path / "big", "/big")
        with pytest.raises(TransferError):
            await client.download(lease.ref, "/big", tmp_path / "out", max_bytes=4)
        assert not (tmp_path / "out").exists()
        for ref in ("unknown", "..", "a/b"):
            with pytest.raises((SandboxLostError, SandboxError)):
                await client.exec(ref, CommandRequest(cmd="true"))

    play(script, max_sandboxes=1)


def test_a_request_without_the_token_does_nothing() -> None:
    async def script(client: BrokerClient, provider: FakeSandboxProvider, url: str) -> None:
        stranger = BrokerClient(url, "another-token-of-tests")
        with pytest.raises(UsageError, match="token"):
            await stranger.acquire(lease_of("r"))
        await stranger.aclose()
        async with httpx.AsyncClient() as http:
            for method, path in (("POST", "/v1/leases"), ("DELETE", "/v1/rollouts?rollout=r")):
                assert (await http.request(method, url + path)).status_code == 401
            headers = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
            reply = await http.get(f"{url}/v1/leases/x", headers=headers)
            assert reply.status_code == 421
        assert provider.created == []

    play(script)


def test_a_broker_that_does_not_answer_is_an_error_of_the_host() -> None:
    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            client = BrokerClient(f"http://127.0.0.1:{closed.getsockname()[1]}", TOKEN)
            with pytest.raises(HostError, match="does not answer"):
                await client.acquire(lease_of("r"))
            await client.aclose()

    asyncio.run(main())


def test_short_tokens_and_missing_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for tokens in ([], ["short"]):
        with pytest.raises(UsageError, match="16 characters"):
            create_broker_app(SandboxBroker(FakeSandboxProvider()), tokens)
    monkeypatch.delenv("BENCHFLOW_BROKER_TOKEN", raising=False)
    with pytest.raises(UsageError, match="missing"):
        read_token(None)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(str(tmp_path / "token")) == TOKEN
    with pytest.raises(UsageError, match="cannot read"):
        read_token(str(tmp_path / "absent"))
