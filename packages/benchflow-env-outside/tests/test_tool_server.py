"""The tool server, as a hostile agent sees it through the door."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from benchflow_contracts import Endpoint
from benchflow_env_outside import ToolServer, WorldAnswer, WorldLimits, WorldSession
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from worlds import Counter


class Served:
    """A session behind its server, and a client with the token of the door."""

    def __init__(self, endpoint: Endpoint, http: aiohttp.ClientSession, counter: Counter) -> None:
        self.endpoint = endpoint
        self.http = http
        self.counter = counter

    async def send(
        self, data: bytes, *, method: str = "POST", path: str = "/mcp", token: bool = True
    ) -> tuple[int, bytes]:
        headers = self.endpoint.headers if token else {}
        url = self.endpoint.url + path
        async with self.http.request(method, url, data=data, headers=headers) as answer:
            return answer.status, await answer.read()

    async def ask(self, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        status, data = await self.send(json.dumps(body).encode())
        assert status == 200
        return json.loads(data)


@asynccontextmanager
async def served(counter: Counter | None = None, **limits: Any) -> AsyncGenerator[Served]:
    counter, bounds = counter or Counter(), WorldLimits(**limits)
    session = WorldSession("counter", counter, {}, 7, "replay", bounds)
    server = ToolServer(session, "world", bounds)
    await session.open()
    async with aiohttp.ClientSession() as http:
        try:
            yield Served(await server.start(), http, counter)
        finally:
            await server.aclose()
            await server.aclose()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_an_agent_lists_and_calls_the_tools() -> None:
    async def main() -> None:
        async with served() as world:
            hello = await world.ask("initialize", protocolVersion="2025-06-18")
            assert hello["result"]["protocolVersion"] == "2025-06-18"
            assert hello["result"]["capabilities"] == {"tools": {"listChanged": False}}
            note = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
            assert await world.send(note) == (202, b"")
            (tool,) = (await world.ask("tools/list"))["result"]["tools"]
            assert (tool["name"], tool["inputSchema"]["type"]) == ("add", "object")
            result = (await world.ask("tools/call", name="add", arguments={}))["result"]
            assert result == {"content": [{"type": "text", "text": "1"}], "isError": False}
            bad = (await world.ask("tools/call", name="add", arguments={"by": 2}))["result"]
            assert bad["isError"]
            assert (await world.ask("ping"))["result"] == {}
            assert (await world.ask("resources/list"))["error"]["code"] == -32601

    run(main())


def test_nothing_is_answered_without_the_token() -> None:
    async def main() -> None:
        async with served() as world:
            call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add"}}'
            assert await world.send(call, token=False) == (401, b"")
            assert world.counter.count == 0
            assert "Bearer" not in repr(world.endpoint)
            assert (await world.send(call, path="/other"))[0] == 404
            assert (await world.send(b"", method="GET"))[0] == 405
            assert (await world.send(b"", method="DELETE"))[0] == 405
            assert world.counter.count == 0

    run(main())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"not json", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"id": 1, "method": "ping", "params": []}', 400),
        (b'{"id": [1], "method": "ping"}', 400),
        (b'{"id": 1, "method": "ping", "params": {"x": NaN}}', 400),
        (b'{"id": 1, "method": 7}', 202),
        (b"x" * 2000, 413),
    ],
)
def test_malformed_requests_are_refused(body: bytes, status: int) -> None:
    async def main() -> None:
        limit = 1000 if status == 413 else 1 << 20
        async with served(request_bytes=limit) as world:
            assert (await world.send(body))[0] == status
            assert (await world.ask("ping"))["result"] == {}

    run(main())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(JSON, min_size=1, max_size=8))
def test_no_request_of_json_ends_the_server(values: list[Any]) -> None:
    async def main() -> None:
        async with served() as world:
            for value in values:
                for body in (
                    value,
                    {"id": 1, "method": "tools/call", "params": value},
                    {"id": value, "method": "tools/call", "params": {"name": value}},
                    {
                        "id": 1,
                        "method": "tools/call",
                        "params": {"name": "add", "arguments": value},
                    },
                ):
                    status, _ = await world.send(json.dumps(body).encode())
                    assert status in {200, 202, 400}
            assert (await world.ask("ping"))["result"] == {}

    run(main())


def test_lone_surrogates_of_the_agent_reach_the_world_as_text() -> None:
    seen: list[Any] = []

    class Listening(Counter):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            seen.append(arguments)
            return WorldAnswer("heard")

    async def main() -> None:
        async with served(Listening()) as world:
            params = b'{"name": "add", "arguments": {"x": "\\ud800"}}'
            data = b'{"id": 1, "method": "tools/call", "params": ' + params + b"}"
            assert (await world.send(data))[0] == 200
        assert json.dumps(seen, ensure_ascii=False).encode()

    run(main())


def test_an_agent_cannot_pile_up_requests() -> None:
    class Waiting(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.entered, self.go = asyncio.Event(), asyncio.Event()

        async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
            del name, arguments
            self.entered.set()
            await self.go.wait()
            return WorldAnswer("at last")

    async def main() -> None:
        waiting = Waiting()
        async with served(waiting, waiting=1) as world, asyncio.TaskGroup() as group:
            first = group.create_task(world.ask("tools/call", name="add"))
            await waiting.entered.wait()
            assert (await world.send(b'{"id": 2, "method": "ping"}'))[0] == 429
            waiting.go.set()
            assert (await first)["result"]["content"][0]["text"] == "at last"

    run(main())
