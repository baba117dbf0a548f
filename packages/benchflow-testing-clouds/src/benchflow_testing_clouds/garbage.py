"""Answers of our servers that are not of their API, for tests of what reads them.

A server does what it was asked for, and `Garbage` replaces its answer.
"""

import asyncio
import gzip
import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from grpclib.encoding.proto import ProtoCodec

from .http import App, Receive, Scope, Send, respond

GarbageKind = Literal[
    "html", "nothing", "null", "no fields", "wrong types", "an error", "lying length", "endless"
]
KINDS: Final[tuple[GarbageKind, ...]] = get_args(GarbageKind)
GRPC_KINDS: Final = ("html", "no fields", "wrong types", "lying length", "endless")
Stage = Literal["create", "read", "command", "list", "delete"]
_HTML = b"<!doctype html><html><title>502 Bad Gateway</title></html>"
_ERROR = {"code": 500, "statusCode": 500, "status": "Failure", "message": "an error of a test"}
_ENDLESS_PIECE, _ENDLESS_PAUSE = b" " * 1024, 0.01
_REQUESTS: Final[Mapping[Stage, str]] = {
    "create": r"POST (/v2/sandboxes|/sandbox|.*/pods)",
    "read": r"GET (/sandbox(es)?/[^/]+|.*/pods/[^/]+)",
    "command": r"\w+ (/process\.Process/.*|/files|/toolbox/.*|.*/exec)",
    "list": r"GET (/v2/sandboxes|/sandbox|.*/pods)",
    "delete": r"DELETE .*",
}
"""The requests of a stage, of E2B, Daytona and Kubernetes."""
_MESSAGES: Final[Mapping[Stage, str]] = {
    "create": "SandboxCreateV2Response",
    "command": "TaskExec.*Response",
    "list": "SandboxListResponse|SandboxTagsGetResponse",
    "delete": "SandboxTerminateResponse",
}
"""The messages of a stage, of Modal."""


def _with_wrong_types(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON of the same shape, whose values have other types."""
    match value:
        case dict():
            pairs = cast("dict[str, Any]", value).items()
            return {key: _with_wrong_types(each) for key, each in pairs}
        case list():
            first = next(iter(cast("Iterable[Any]", value)), None)
            return {"0": _with_wrong_types(first)} if value else {}
        case str():
            return [7]
        case _:
            return {"not": "expected"}


@dataclass
class Garbage:
    """Which answers are replaced, and how. At first, none is."""

    kind: GarbageKind | None = None
    stage: Stage | None = None
    answers: int = 0
    """The answers that were replaced."""
    on_answer: Callable[[], object] = lambda: None
    """Called when one of them begins."""

    @contextmanager
    def on(self, stage: Stage, kind: GarbageKind) -> Generator[None]:
        """Replace the answers of a stage inside the block."""
        self.kind, self.stage, self.answers = kind, stage, 0
        try:
            yield
        finally:
            self.kind = self.stage = None
            self.on_answer = lambda: None

    def count(self) -> None:
        """Count an answer that is replaced."""
        self.answers += 1
        self.on_answer()

    def around(self, app: App) -> App:
        """Return a server with some answers of `app` replaced."""

        async def spoiled(scope: Scope, receive: Receive, send: Send) -> None:
            request = f"{scope.get('method', 'GET')} {scope['path']}"
            if self.stage is None or not re.fullmatch(_REQUESTS[self.stage], request):
                await app(scope, receive, send)
                return
            self.count()
            if scope["type"] == "websocket":
                await self._speak(receive, send)
                return
            parts: list[bytes] = []

            async def keep(message: Any) -> None:  # noqa: ANN401 - of ASGI
                parts.append(message.get("body", b""))

            if self.stage != "command":  # streams of commands do not end
                await app(scope, receive, keep)
            await self._answer(b"".join(parts), send)

        return spoiled

    async def _answer(self, body: bytes, send: Send) -> None:
        headers = [(b"content-type", b"text/html" if self.kind == "html" else b"application/json")]
        if self.kind == "lying length":
            headers.append((b"content-length", b"%d" % (len(body) + 1000)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while self.kind == "endless":
            await send({"type": "http.response.body", "body": _ENDLESS_PIECE, "more_body": True})
            await asyncio.sleep(_ENDLESS_PAUSE)
        await send({"type": "http.response.body", "body": self._body(body)})

    def _body(self, body: bytes) -> bytes:
        match self.kind:
            case "html":
                return _HTML
            case "nothing":
                return b""
            case "null":
                return b"null"
            case "no fields":
                return b"{}"
            case "wrong types":
                return json.dumps(_with_wrong_types(json.loads(body or b"[1]"))).encode()
            case "an error":
                return json.dumps(_ERROR).encode()
            case _:
                return body[: len(body) // 2]

    async def _speak(self, receive: Receive, send: Send) -> None:
        """Accept a WebSocket, and send what no command sends."""
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "v5.channel.k8s.io"})
        for data in (b"\xff\xff", b"", _HTML, b"\x03" + self._body(b"{}")):
            await send({"type": "websocket.send", "bytes": data})
        await send({"type": "websocket.close", "code": 1000})


class _Endless(bytes):
    """A message whose length says that it has no end."""

    def __len__(self) -> int:
        return (1 << 32) - 1


class GarbageCodec(ProtoCodec):
    """The codec of a server whose messages are replaced by `garbage`."""

    def __init__(self, garbage: Garbage) -> None:
        self._garbage = garbage

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ANN401
        """Return the bytes of a message, or other bytes."""
        data = super().encode(message, message_type)
        stage, name = self._garbage.stage, type(message).__name__
        if stage is None or not re.fullmatch(_MESSAGES.get(stage, ""), name):
            return data
        self._garbage.count()
        match self._garbage.kind:
            case "html":
                return _HTML
            case "wrong types":
                return b"\x08\x01\x10\x01\x18\x01\x20\x01\x28\x01\x30\x01"
            case "lying length":
                return data[: len(data) // 2] + b"\x0a\xff\x01"
            case "endless":
                return _Endless(data)
            case _:
                return b""


def hostile_app(answer: Literal["bomb", "redirect"], elsewhere: str = "") -> App:
    """Return a server that answers every request with a compressed megabyte, or a redirect."""
    bomb = gzip.compress(b" " * (1 << 20))

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if answer == "bomb":
            await respond(send, 200, bomb, {"content-encoding": "gzip"})
        else:
            await respond(send, 307, None, {"location": elsewhere + scope["path"]})

    return app
