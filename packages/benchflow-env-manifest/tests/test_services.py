"""Services in a fake sandbox: what is started is watched and ends again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from benchflow_contracts import SandboxError, SandboxSpec
from benchflow_env_manifest.manifest import Service
from benchflow_env_manifest.services import Services
from benchflow_testing.fakes import (
    FakeCall,
    FakeSandbox,
    FakeSandboxProvider,
    FakeStreams,
)

MAIL = Service(name="mail", command="mail-service", port=1)
CHAT = Service(name="chat", command="chat-service", port=2)


async def forever(call: FakeCall, streams: FakeStreams) -> int:
    await asyncio.Event().wait()
    return 0


def in_box(test: Callable[[FakeSandboxProvider, FakeSandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        provider = FakeSandboxProvider()
        box = await provider.create(SandboxSpec())
        provider.on_spawn("mail-service", forever)
        provider.on_spawn("chat-service", forever)
        await test(provider, box)

    asyncio.run(main())


async def until_dead(services: Services) -> None:
    async with asyncio.timeout(10):
        while not services.ended():  # noqa: ASYNC110 - the watcher's next turn sets it
            await asyncio.sleep(0)


def test_services_run_as_root_with_their_own_variables():
    async def test(provider: FakeSandboxProvider, box: FakeSandbox):
        services = Services(box, {"TOKEN": "t"})
        await services.start([MAIL, CHAT])
        assert [(call.cmd, call.user, call.cwd) for call in box.calls] == [
            (("mail-service",), "root", "/"),
            (("chat-service",), "root", "/"),
        ]
        assert all(call.env["TOKEN"] == "t" for call in box.calls)
        assert services.ended() == []
        await services.stop()
        assert services.running == ()
        await services.stop()

    in_box(test)


def test_a_service_that_ends_leaves_its_last_lines():
    async def chatty(call: FakeCall, streams: FakeStreams) -> int:
        for number in range(3000):
            await streams.stdout.write(f"line {number}\n".encode())
        await streams.stderr.write(b"no \x1b[31mseed\n")
        return 3

    async def test(provider: FakeSandboxProvider, box: FakeSandbox):
        provider.on_spawn("mail-service", chatty)
        services = Services(box, {})
        await services.start([MAIL, CHAT])
        await until_dead(services)
        (dead,) = services.ended()
        text = dead.exit_report()
        assert text.startswith("service 'mail' ended with exit code 3; its last lines:\n")
        assert "line 2999" in text
        assert "line 10\n" not in text
        assert "\x1b" not in text
        assert len(text) < 10_000
        await services.stop()

    in_box(test)


def test_when_one_cannot_be_started_the_others_are_stopped_again():
    async def test(provider: FakeSandboxProvider, box: FakeSandbox):
        async def break_the_next(call: FakeCall, streams: FakeStreams) -> int:
            return await forever(call, streams)

        provider.on_spawn("mail-service", break_the_next)
        spawn = box.spawn
        processes = []

        async def second_fails(cmd, **options):
            if processes:
                raise SandboxError("no more processes")
            processes.append(await spawn(cmd, **options))
            return processes[-1]

        box.spawn = second_fails
        services = Services(box, {})
        with pytest.raises(SandboxError, match="no more processes"):
            await services.start([MAIL, CHAT])
        assert not processes[0].group.alive
        assert services.running == ()

    in_box(test)


def test_stop_after_the_sandbox_is_gone_is_quiet():
    async def test(provider: FakeSandboxProvider, box: FakeSandbox):
        services = Services(box, {})
        await services.start([MAIL])
        await box.teardown()
        await services.stop()

    in_box(test)


def test_a_stopped_set_can_be_started_again():
    async def test(provider: FakeSandboxProvider, box: FakeSandbox):
        services = Services(box, {})
        for _ in range(2):
            await services.start([MAIL])
            assert [each.service for each in services.running] == [MAIL]
            await services.stop()
        assert provider.operations.count("spawn") == 2

    in_box(test)
