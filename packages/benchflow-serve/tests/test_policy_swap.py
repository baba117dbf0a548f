"""New weights under 64 rollouts that call their model without a pause, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from benchflow_contracts import Endpoint, ModelCall
from benchflow_gateway import HttpGateway
from benchflow_kernel import Planes
from benchflow_serve.policies import Policies, PolicyUse
from benchflow_serve_client import PolicyUpdate
from benchflow_testing.fakes import FakeSandboxProvider, FakeUserModel

ROLLOUTS = 64
UPDATES = 4


@asynccontextmanager
async def model_server(version: str) -> AsyncIterator[str]:
    """Serve weights that name themselves, in two pieces, so that a call takes a while."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for content, finish in ((f"{version} ", None), (body["model"], "stop")):
            choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
            chunk = {"id": "c", "model": body["model"], "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def update(version: str, url: str) -> PolicyUpdate:
    endpoint = {"url": url, "model": f"model-{version}", "upstream": "openai"}
    return PolicyUpdate.model_validate(
        {"version": version, "endpoint": endpoint, "in_flight": "swap"}
    )


async def open_route(use: PolicyUse, gateway: HttpGateway) -> Any:
    planes = Planes(
        provider=FakeSandboxProvider(),
        agents={},
        rewards=(),
        environment=None,
        user=FakeUserModel,
        gateway=gateway,
    )
    prepared = use.prepare(planes).gateway
    assert prepared is not None
    return await prepared.open(use.rollout, "n1", upstream=Endpoint(url="http://127.0.0.1:9/"))


class Progress:
    """Counts the calls that have ended."""

    def __init__(self) -> None:
        self._left = 0
        self._reached = asyncio.Event()

    def count(self, _: ModelCall) -> None:
        self._left -= 1
        if self._left <= 0:
            self._reached.set()

    async def wait_for(self, calls: int) -> None:
        """Wait for that many more calls."""
        self._left = calls
        self._reached.clear()
        await self._reached.wait()


async def act(url: str, session: aiohttp.ClientSession, stop: asyncio.Event) -> list[str]:
    """Call the model until `stop` is set; return what it said."""
    said: list[str] = []
    request = {"model": "agents-own", "messages": [{"role": "user", "content": "hi"}]}
    while not stop.is_set():
        async with session.post(f"{url}/v1/chat/completions", json=request) as answer:
            body = await answer.json()
            assert answer.status == 200, body
            said.append(body["choices"][0]["message"]["content"])
    return said


def test_no_call_is_lost_or_answered_by_two_versions(tmp_path: Path) -> None:
    async def main() -> None:
        policies, stop = Policies(), asyncio.Event()
        async with AsyncExitStack() as stack:
            servers = {
                f"v{n}": await stack.enter_async_context(model_server(f"v{n}"))
                for n in range(UPDATES + 1)
            }
            gateway = await stack.enter_async_context(HttpGateway(tmp_path / "record"))
            connector = aiohttp.TCPConnector(limit=0)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            await policies.update("p", update("v0", servers["v0"]))
            uses = [policies.reserve("p", f"r{n}", lambda _: None) for n in range(ROLLOUTS)]
            for use in uses:
                use.begin()
            routes = [await open_route(use, gateway) for use in uses]
            progress = Progress()
            for route in routes:
                route.on_call(progress.count)
            async with asyncio.TaskGroup() as group:
                acting = [group.create_task(act(r.endpoint.url, session, stop)) for r in routes]
                for version in list(servers)[1:]:
                    await progress.wait_for(ROLLOUTS + 1)
                    status = await policies.update("p", update(version, servers[version]))
                    assert status.swapped == ROLLOUTS
                    assert status.in_flight == {version: ROLLOUTS}
                # Each rollout has one call in flight, so one of these calls has the last weights.
                await progress.wait_for(ROLLOUTS + 1)
                stop.set()
            for route, task in zip(routes, acting, strict=True):
                calls = route.calls()
                assert len(calls) == len(task.result())
                assert all(call.error is None for call in calls)
                said = [call.response["choices"][0]["message"]["content"] for call in calls]
                assert said == [f"{call.policy_version} {call.model}" for call in calls]
                versions = [call.policy_version for call in calls]
                assert versions == sorted(versions)
                assert all(call.model == f"model-{call.policy_version}" for call in calls)
            used = {call.policy_version for route in routes for call in route.outline()}
            assert used == set(servers)

    asyncio.run(main())
