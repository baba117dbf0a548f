"""A model server that costs next to nothing: fixed bytes, over asyncio's bare protocol.

`python model_server.py` prints its address. A streamed answer has 20 events; with
`"slow": true` in the request they come 50 ms apart.
"""

import asyncio
import json
import sys

EVENTS = 20
GAP_SEC = 0.05
REPLY = {
    "id": "c",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * EVENTS},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 900, "completion_tokens": EVENTS, "total_tokens": 920},
}
BODY = json.dumps(REPLY).encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(delta: dict[str, str], finish: str | None = None) -> bytes:
    """Return one chunk of a chat stream, in HTTP's chunked framing."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return framed(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WORD = event({"content": "word "})
END = event({}, "stop") + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Model(asyncio.Protocol):
    """Answers one request after the other on a connection."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._next()) is not None:
            if b'"stream":true' not in request:
                self._transport.write(WHOLE + BODY)
            elif b'"slow":true' in request:
                self._transport.write(HEAD)
                self._word(EVENTS)
            else:
                self._transport.write(HEAD + WORD * EVENTS + END)

    def _next(self) -> bytes | None:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", b"0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        return rest[:length].replace(b'": ', b'":')

    def _word(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(WORD)
            asyncio.get_running_loop().call_later(GAP_SEC, self._word, left - 1)
        else:
            self._transport.write(END)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
