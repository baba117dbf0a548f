"""A server that is hostile to kubernetes_asyncio. Nothing here runs on a cluster."""

import asyncio

import pytest
from benchflow_contracts.errors import HostError
from benchflow_sandbox_kubernetes import KubernetesProvider
from benchflow_sandbox_remote import limited_answers
from benchflow_testing_clouds.garbage import hostile_app
from benchflow_testing_clouds.http import respond, serving


def test_a_bomb_and_a_redirect_are_refused_and_no_other_server_is_asked(monkeypatch, use_server):
    monkeypatch.setattr(limited_answers, "MOST_BYTES", 1 << 16)
    asked = []

    async def other(scope, receive, send):
        asked.append(scope["path"])
        await respond(send, 200, {})

    async def listed(app):
        async with serving(app) as url:
            use_server(url)
            async with KubernetesProvider() as provider:
                async for _ in provider.sandboxes():
                    pass

    async def main():
        with pytest.raises(HostError, match="more than 65536 bytes"):
            await listed(hostile_app("bomb"))
        async with serving(other) as elsewhere:
            with pytest.raises(HostError, match="leads to another address"):
                await listed(hostile_app("redirect", elsewhere))

    asyncio.run(main())
    assert asked == []
