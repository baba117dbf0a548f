"""A gate before the upstream: it counts, it waits, and it defers."""

import asyncio
from typing import Any

import aiohttp
import pytest
from benchflow_contracts import Endpoint, PendingCall, SupportsCallGate
from gateway_peers import agent_of

APIS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")


@pytest.mark.parametrize("api", APIS)
def test_a_deferred_request_is_no_call_and_its_repetition_is_the_same_number(
    run: Any, llm: Any, api: str
) -> None:
    seen: list[int | None] = []
    digests: list[str] = []

    async def gate(call: PendingCall) -> bool:
        seen.append(call.number)
        digests.append(call.digest)
        return seen.count(call.number) > 1 or call.number != 2

    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n0", upstream=Endpoint(url=llm.url))
        assert isinstance(route, SupportsCallGate)
        route.before_call(gate)
        async with agent_of(route) as agent:
            statuses = [(await agent.post(api, text=f"turn {n}"))[0] for n in (1, 2, 2, 3)]
        assert statuses == [200, 503, 200, 200]
        assert seen == [1, 2, 2, 3]
        assert digests[1] == digests[2]
        assert len(set(digests)) == 3
        assert len(llm.requests) == 3
        assert [call.status for call in route.calls()] == [200, 200, 200]
        assert len({call.id for call in route.calls()}) == 3
        await route.aclose()
        # A deferred request leaves a gap in the ids; a continued record does not use one twice.
        again = await gateway.open("r", "n0", upstream=Endpoint(url=llm.url))
        async with agent_of(again) as agent:
            assert (await agent.post(api, text="turn 4"))[0] == 200
        assert len({call.id for call in again.calls()}) == 4

    run(body)


def test_replayed_calls_count_and_do_not_ask_the_gate(run: Any, llm: Any) -> None:
    seen: list[int | None] = []

    async def gate(call: PendingCall) -> bool:
        seen.append(call.number)
        return True

    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url)
        parent = await gateway.open("r", "n0", upstream=upstream)
        async with agent_of(parent) as agent:
            for n in (1, 2):
                await agent.post("openai-chat", text=f"turn {n}")
        child = await gateway.open("r", "n1", upstream=upstream, replay=parent.calls())
        child.before_call(gate)
        async with agent_of(child) as agent:
            for n in (1, 2, 3):
                await agent.post("openai-chat", text=f"turn {n}")
        assert seen == [3]
        assert [call.replayed for call in child.calls()] == [True, True, False]

    run(body)


def test_a_waiting_gate_holds_the_call_and_closing_the_route_ends_it(run: Any, llm: Any) -> None:
    arrived = asyncio.Event()

    async def gate(_call: PendingCall) -> bool:
        arrived.set()
        await asyncio.Event().wait()
        return True

    async def close(route: Any) -> int:
        await arrived.wait()
        in_flight: int = route.in_flight
        await route.aclose()
        return in_flight

    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n0", upstream=Endpoint(url=llm.url))
        route.before_call(gate)
        async with agent_of(route) as agent, asyncio.TaskGroup() as group:
            closing = group.create_task(close(route))
            with pytest.raises(aiohttp.ClientError):
                await agent.post("openai-chat", text="turn")
            assert await closing == 1
        assert not llm.requests
        assert route.in_flight == 0

    run(body)
