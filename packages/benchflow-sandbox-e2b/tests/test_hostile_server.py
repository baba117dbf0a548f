"""A server that is hostile to E2B's SDK. Nothing here runs on E2B."""

import asyncio

import pytest
from benchflow_contracts.errors import HostError, SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_remote import limited_pyqwest
from benchflow_testing_clouds.garbage import hostile_app
from benchflow_testing_clouds.http import respond, serving


def test_a_bomb_and_a_redirect_are_refused_and_no_other_server_is_asked(monkeypatch):
    monkeypatch.setattr(limited_pyqwest, "MOST_BYTES", 1 << 16)
    asked = []

    async def other(scope, receive, send):
        asked.append(scope["path"])
        await respond(send, 200, {})

    async def listed(app):
        async with serving(app) as url, E2bProvider(api_key="e2b_test", api_url=url) as provider:
            async for _ in provider.sandboxes():
                pass

    async def main():
        with pytest.raises(HostError, match="more than 65536 bytes"):
            await listed(hostile_app("bomb"))
        async with serving(other) as elsewhere:
            with pytest.raises(SandboxError, match="307"):
                await listed(hostile_app("redirect", elsewhere))

    asyncio.run(main())
    assert asked == []


def test_a_deletion_that_is_not_confirmed_is_an_error(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec())
        with server.garbage.on("delete", "html"), pytest.raises(HostError, match="status 200"):
            await sandbox.teardown()

    with_provider(test)
