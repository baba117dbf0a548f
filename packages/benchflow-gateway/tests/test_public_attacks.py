"""Attacks on the listener for other machines, by strangers and by an agent that has a token."""

import asyncio
import gzip
import json
import logging
from contextlib import suppress
from typing import Any

from benchflow_contracts import CallBudget, Endpoint
from benchflow_gateway import CallBudgetError, Limits
from gateway_peers import PATHS, ask, hand_written, whole
from test_public import LOOPBACK, authority, client, secured, status_of

__all__ = ["authority", "secured"]
CHAT = PATHS["openai-chat"]
MESSAGE = {"message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
ANSWER = whole({"choices": [MESSAGE]})


def address_of(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.split(":")[2].split("/", maxsplit=1)[0])


async def said(url: str, data: bytes) -> bytes:
    """Return all that the gateway answers to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection(*address_of(url))
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_bytes_that_are_not_text_or_not_http_are_refused_without_a_line_in_the_log(
    run, llm, caplog
) -> None:
    caplog.set_level(logging.INFO)

    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        public = await route.publish(seconds=60)
        head = f"POST /r/r/n/n{CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        for header in (b"Authorization: Bearer \xff\xfe", b"x-api-key: \xe9"):
            answer = await said(public.url, head.encode() + header + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401 "), answer
        for data in (b"\x16\x03\x01\x02\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
            assert (await said(public.url, data)).startswith(b"HTTP/1.0 400 ")
        assert route.error is None

    run(body, public=LOOPBACK)
    assert [each for each in caplog.records if each.levelno >= logging.INFO] == []


class SlowModel:
    """Answers when `release` is set. `arrived` counts the calls that wait for it."""

    def __init__(self) -> None:
        self.release, self.arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def __call__(self, taken: Any) -> None:
        self.arrived.release()
        await self.release.wait()
        await taken.write(ANSWER)


def test_strangers_cannot_keep_out_or_cut_a_call_with_a_token(run, secured, authority) -> None:
    most, model = 6, SlowModel()

    async def body(gateway: Any) -> None:
        async with hand_written(model) as upstream:
            route = await gateway.open("r", "n", upstream=upstream)
            public = await route.publish(seconds=60)
            async with client(authority) as session, asyncio.TaskGroup() as group:
                first = group.create_task(status_of(session, public.url, **public.headers))
                await model.arrived.acquire()
                # None of them begins TLS.
                strangers = [
                    await asyncio.open_connection(*address_of(public.url)) for _ in range(3 * most)
                ]
                for reader, _ in strangers[: 2 * most]:
                    assert await ended(reader)
                second = group.create_task(status_of(session, public.url, **public.headers))
                await model.arrived.acquire()
                model.release.set()
            assert (first.result(), second.result()) == (200, 200)
            for _, writer in strangers:
                writer.close()

    run(body, public=secured, limits=Limits(connections=most))


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def test_an_agent_with_a_token_has_a_limited_number_of_calls_at_one_time(run) -> None:
    model = SlowModel()

    async def body(gateway: Any) -> None:
        async with hand_written(model) as upstream:
            route = await gateway.open("r", "n", upstream=upstream)
            public = await route.publish(seconds=60)
            async with client() as session, asyncio.TaskGroup() as group:
                served = [
                    group.create_task(status_of(session, public.url, **public.headers))
                    for _ in range(2)
                ]
                for _ in served:
                    await model.arrived.acquire()
                assert await status_of(session, public.url, **public.headers) == 503
                model.release.set()
            assert [each.result() for each in served] == [200, 200]

    run(body, public=LOOPBACK, limits=Limits(public_calls=2))


def test_a_compressed_request_waits_until_its_unpacked_size_has_room(run) -> None:
    waiting, together = 0, asyncio.Event()

    async def slow(taken: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting > 1:
            together.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await together.wait()
        waiting -= 1
        await taken.write(ANSWER)

    async def body(gateway: Any) -> None:
        async with hand_written(slow) as upstream:
            route = await gateway.open("r", "n", upstream=upstream)
            data = gzip.compress(json.dumps(ask("openai-chat", text="x" * 900_000)).encode())
            assert len(data) < 4000
            async with client() as session, asyncio.TaskGroup() as group:
                # The upstream closes each connection, also under a long request that was begun.
                for _ in range(4):
                    group.create_task(post(session, route.endpoint.url + CHAT, data))
        assert not together.is_set()

    size = 1 << 20
    run(body, limits=Limits(request_bytes=size, requests_bytes=size))


async def post(session: Any, url: str, data: bytes) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with session.post(url, data=data, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


def test_a_token_whose_budget_is_used_up_reaches_nothing_at_the_model_server(run, llm) -> None:
    async def body(gateway: Any) -> None:
        budget = CallBudget(calls=0)
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url), budget=budget)
        public = await route.publish(seconds=60)
        models = f"{public.url}/v1/models"
        async with client() as session:
            async with session.get(models, headers=public.headers) as answer:
                assert answer.status == 200
            assert await status_of(session, public.url, **public.headers) == 429
            assert isinstance(route.error, CallBudgetError)
            async with session.get(models, headers=public.headers) as answer:
                assert answer.status == 429

    run(body, public=LOOPBACK)
