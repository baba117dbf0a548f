"""Both ends of a line: the agent's client, and an upstream whose bytes a test writes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from benchflow_contracts import Endpoint

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
}
KEY = "Bearer sk-the-real-key-0123456789"


def ask(api: str, *, stream: bool = False, text: str = "Write it.", **more: Any) -> dict[str, Any]:
    """Return a request that offers one tool, in the wire `api`."""
    tool = {"name": "write_file", "description": "Writes."}
    said = [{"role": "user", "content": text}]
    if api == "openai-chat":
        function = {"type": "function", "function": {**tool, "parameters": PARAMETERS}}
        body: dict[str, Any] = {"messages": said, "tools": [function]}
    elif api == "openai-responses":
        function = {"type": "function", **tool, "parameters": PARAMETERS}
        body = {"input": said, "tools": [function]}
    elif api == "gemini":
        # The model, and whether it is streamed, are in the path.
        declared = {"functionDeclarations": [{**tool, "parametersJsonSchema": PARAMETERS}]}
        contents = [{"role": "user", "parts": [{"text": text}]}]
        return {"contents": contents, "tools": [declared], **more}
    else:
        offered = {**tool, "input_schema": PARAMETERS}
        body = {"max_tokens": 100, "messages": said, "tools": [offered]}
    return {"model": "m", "stream": stream, **body, **more}


PATHS = {
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}
GEMINI_STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"


@dataclass
class Taken:
    """One request that the hand-written upstream got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    write: Callable[[bytes], Awaitable[None]]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side has closed the connection."""


Behave = Callable[[Taken], Awaitable[None]]


@asynccontextmanager
async def hand_written(behave: Behave) -> AsyncIterator[Endpoint]:
    """Serve each request with the bytes that `behave` writes; one request per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in pairs}
            data = await reader.readexactly(int(headers.get("content-length", 0)))
            taken = Taken(head[0].split(" ")[1], headers, json.loads(data or b"{}"), write)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(reader, taken.gone))
                await behave(taken)
                watching.cancel()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Endpoint(url=f"http://127.0.0.1:{port}/v1", headers={"Authorization": KEY})
    finally:
        server.close()


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    try:
        await reader.read()
    finally:
        gone.set()


def whole(body: dict[str, Any], status: str = "200 OK", **headers: str) -> bytes:
    """Return a whole JSON answer."""
    data = json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one chunk of a chat stream."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    data = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    return f"data: {json.dumps(data)}\n\n".encode()


class Agent:
    """The client at the other end of a line."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self.session = session
        self.base = base

    def called(self, api: str, **request: Any) -> Any:
        """Make a call, whose answer the caller reads."""
        streamed = api == "gemini" and request.get("stream")
        path = GEMINI_STREAM if streamed else PATHS[api]
        return self.session.post(self.base + path, json=ask(api, **request))

    async def post(self, api: str, **request: Any) -> tuple[int, str]:
        """Make a call; return its status and its text."""
        async with self.called(api, **request) as answer:
            return answer.status, await answer.text()

    async def json(self, api: str, **request: Any) -> dict[str, Any]:
        """Make a call that is answered with a document."""
        status, text = await self.post(api, **request)
        assert status == 200, text
        return json.loads(text)


@asynccontextmanager
async def agent_of(line: Any) -> AsyncIterator[Agent]:
    headers = {"Authorization": "Bearer box-dummy", "x-api-key": "box-dummy"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield Agent(session, line.endpoint.url)
