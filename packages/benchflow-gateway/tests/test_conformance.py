"""The contracts' own checks of a ModelGateway, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchflow_contracts import ModelRoute
from benchflow_testing import GatewaySubject, check_gateway
from gateway_peers import Behave, Taken, agent_of, hand_written, whole


def model(name: str, release: asyncio.Event, arrived: asyncio.Event) -> Behave:
    """Answer with the name and the question; keep `slow` waiting until it is released."""

    async def behave(taken: Taken) -> None:
        text = taken.body["messages"][-1]["content"]
        if text == "slow":
            arrived.set()
            await release.wait()
        message = {"role": "assistant", "content": f"{name}: {text}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        await taken.write(whole({"id": "c", "model": "m", "choices": [choice], "usage": usage}))

    return behave


async def call(line: ModelRoute, text: str) -> str | None:
    async with agent_of(line) as agent:
        status, body = await agent.post("openai-chat", text=text)
    return json.loads(body)["choices"][0]["message"]["content"] if status == 200 else None


def test_the_gateway_keeps_every_promise_of_the_contract(run: Any) -> None:
    async def body(gateway: Any) -> None:
        release, arrived = asyncio.Event(), asyncio.Event()

        @asynccontextmanager
        async def slow(line: ModelRoute) -> AsyncIterator[None]:
            release.clear()
            arrived.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(call(line, "slow"))
                await arrived.wait()
                yield
                release.set()

        async with (
            hand_written(model("one", release, arrived)) as upstream,
            hand_written(model("two", release, arrived)) as other,
        ):
            subject = GatewaySubject(gateway, upstream, other, call, slow)
            results = await check_gateway(subject)
        assert {result.name: result.reason for result in results if result.status != "passed"} == {}

    run(body)
