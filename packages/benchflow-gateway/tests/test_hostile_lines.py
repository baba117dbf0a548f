"""What an agent, or an upstream, does to a line: budgets, paths and keys hold."""

import asyncio
import json
import zlib
from typing import Any
from urllib.parse import urlsplit

import pytest
from benchflow_contracts import CallBudget
from benchflow_gateway import Price
from gateway_peers import KEY, STREAM_HEAD, Taken, agent_of, ask, chunk, hand_written, whole

SECRET = KEY.split()[1]


def answer(text: str = "hi", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage, **more}


async def send(line: Any, head: str, body: bytes = b"") -> bytes:
    """Send bytes as they are; `@` stands for the line's path."""
    url = urlsplit(line.endpoint.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    fields = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    start, _, rest = head.replace("@", url.path).partition("\n")
    writer.write(f"{start} HTTP/1.1\r\n{fields}{rest}\r\n".encode() + body)
    async with asyncio.timeout(60):
        said = await reader.read()
    writer.close()
    return said


async def _post(session: Any, url: str, request: Any) -> None:
    async with session.post(url, json=request):
        raise AssertionError("nothing was to come")


@pytest.mark.parametrize("path", ["..", "../../admin", "x/../y", "...", "./x", "x/."])
def test_no_path_of_a_line_climbs_out_of_its_upstream(run, path: str) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            raise AssertionError(taken.path)

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            assert (await send(line, f"GET @/models/{path}")).startswith(b"HTTP/1.1 404")

    run(body)


def test_an_alias_costs_as_much_as_its_model(run) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            await taken.write(whole(answer()))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream, budget=CallBudget(cost_usd=1))
            async with agent_of(line) as agent:
                assert (await agent.post("openai-chat", model="for-nothing"))[0] == 200
                assert (await agent.post("openai-chat", model="cheap"))[0] == 429
        assert line.calls()[0].cost_usd == 2.0

    prices = {"big": Price(input=1000, output=1000), "cheap": Price(input=0, output=0)}
    run(body, model="big", prices=prices)


@pytest.mark.parametrize("begun", [True, False])
def test_a_prompt_that_nobody_waits_for_counts(run, begun: bool) -> None:
    async def body(gateway: Any) -> None:
        arrived = asyncio.Event()

        async def behave(taken: Taken) -> None:
            if begun:
                await taken.write(STREAM_HEAD + chunk("a"))
            arrived.set()
            await taken.gone.wait()

        async with hand_written(behave) as upstream:
            budget = CallBudget(tokens=10_000)
            line = await gateway.open("r", "n", upstream=upstream, budget=budget)
            async with agent_of(line) as agent:
                request = ask("openai-chat", stream=True, text="word " * 20_000)
                url = f"{agent.base}/chat/completions"
                if begun:
                    async with agent.session.post(url, json=request) as begins:
                        await begins.content.readany()
                        begins.close()
                else:
                    async with asyncio.TaskGroup() as group:
                        post = group.create_task(_post(agent.session, url, request))
                        await arrived.wait()
                        post.cancel()
                assert await line.quiesce(60)
                assert (await agent.post("openai-chat"))[0] == 429
        assert line.calls()[0].usage.input_tokens > 10_000

    run(body)


@pytest.mark.parametrize("stream", [True, False])
def test_a_key_that_an_upstream_echoes_reaches_neither_sandbox_nor_record(
    run,
    tmp_path: Any,
    stream: bool,
) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            if stream:
                said = chunk(f"Bearer of {SECRET}") + chunk(finish="stop") + b"data: [DONE]\n\n"
                await taken.write(STREAM_HEAD + said)
            else:
                await taken.write(whole(answer(f"Bearer of {SECRET}")))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                status, text = await agent.post("openai-chat", stream=stream)
        assert status == 200
        assert "Bearer of [redacted]" in text
        assert SECRET not in text

    run(body)
    [record] = (tmp_path / "record").rglob("*.jsonl")
    assert "Bearer of [redacted]" in record.read_text()
    assert SECRET not in record.read_text()


def test_a_bomb_that_is_small_on_the_wire_is_refused(run) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(64)) + packer.flush()

    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            raise AssertionError(taken.path)

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            said = await send(line, "POST @/chat/completions\nContent-Encoding: gzip\r\n", bomb)
            assert said.startswith(b"HTTP/1.1 413")
            deep = json.dumps({"a": 1}).replace("1", "[" * 5000 + "]" * 5000).encode()
            assert (await send(line, "POST @/chat/completions", deep)).startswith(b"HTTP/1.1 400")

    run(body)
