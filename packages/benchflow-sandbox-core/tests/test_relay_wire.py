"""What of an agent's requests is led out to the model endpoint, over real sockets."""

import asyncio
import socket

import pytest
from benchflow_contracts import Door, DoorServes, UsageError
from benchflow_sandbox_core.relay.server import Relay, RelayUpstream

KEY = "sk-the-operators-own-key"


def asked(
    *requests: str, headers: str = "", serves: DoorServes = "model", key: str | None = KEY
) -> list[str]:
    """Return what each request is answered with by an upstream that echoes it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = f"HTTP/1.1 200 OK\r\nContent-Length: {len(head)}\r\n\r\n"
        writer.write(length.encode() + head)
        await writer.drain()
        writer.close()

    async def one(port: int, request: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{request} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        await writer.drain()
        answer = (await reader.read()).decode()
        writer.close()
        return answer

    async def main() -> list[str]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Door(
                upstream=f"http://127.0.0.1:{port}/base",
                headers={"Authorization": key} if key else {},
                serves=serves,
            )
            listener = socket.create_server(("127.0.0.1", 0))
            relay = await Relay.start(listener, RelayUpstream.of(endpoint))
            try:
                return [await one(listener.getsockname()[1], request) for request in requests]
            finally:
                await relay.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "request_line",
    [
        "TRACE /",
        "TRACE /v1/messages",
        "trace /v1/messages",
        "OPTIONS /v1/messages",
        "PUT /v1/messages",
        "DELETE /v1/models/m",
        "PATCH /responses",
        "GET /v1/chat/completions",
        "POST /",
        "POST /v1/files",
        "GET /v1/responses/resp_1",
        "GET /v1/organization/api_keys",
        "GET /v1/models/../keys",
        "GET /v1/models/a%2f..%2fkeys",
        "POST /v1/messages/",
        "POST /v1/messages/batches",
        "POST //v1/messages",
        "POST /debug/echo?x=/v1/messages",
    ],
)
def test_what_no_wire_needs_does_not_leave_the_box(request_line: str) -> None:
    (answer,) = asked(request_line)
    assert answer.startswith(("HTTP/1.1 403 ", "HTTP/1.1 400 "))
    assert KEY not in answer


@pytest.mark.parametrize(
    "request_line",
    [
        "POST /chat/completions",
        "POST /v1/chat/completions",
        "POST /v1/responses",
        "POST /v1/messages?beta=true",
        "POST /v1/messages/count_tokens",
        "POST /v1beta/models/gemini-9-pro:generateContent",
        "POST /v1beta/models/gemini-9-pro:streamGenerateContent?alt=sse",
        "GET /v1/models",
        "GET /models/org/name:free",
    ],
)
def test_what_a_wire_needs_is_led_out_with_the_credential(request_line: str) -> None:
    (answer,) = asked(request_line)
    method, target = request_line.split(" ")
    assert f"\r\n\r\n{method} /base{target} HTTP/1.1\r\n" in answer
    assert KEY in answer


def test_a_probe_is_led_out_without_the_credential() -> None:
    (answer,) = asked("GET /")
    assert "\r\n\r\nGET /base/ HTTP/1.1\r\n" in answer
    assert KEY not in answer


def test_no_header_makes_another_method_of_a_request() -> None:
    named = ("X-HTTP-Method", "x-http-method-override", "X-Method-Override")
    (answer,) = asked("POST /v1/messages", headers="".join(f"{n}: TRACE\r\n" for n in named))
    assert "TRACE" not in answer


@pytest.mark.parametrize("request_line", ["POST /mcp", "GET /mcp", "DELETE /mcp"])
def test_a_door_to_tools_lets_requests_of_mcp_pass(request_line: str) -> None:
    (answer,) = asked(request_line, serves="tools")
    assert answer.startswith("HTTP/1.1 200 ")
    assert KEY in answer


@pytest.mark.parametrize(
    "request_line",
    ["POST /", "POST /mcp/x", "POST /mcp?x=1", "PUT /mcp", "TRACE /mcp", "POST /v1/messages"],
)
def test_a_door_to_tools_lets_nothing_else_pass(request_line: str) -> None:
    (answer,) = asked(request_line, serves="tools")
    assert answer.startswith("HTTP/1.1 403 ")
    assert KEY not in answer


def test_a_door_to_a_model_lets_no_request_of_mcp_pass() -> None:
    (answer,) = asked("POST /mcp")
    assert answer.startswith("HTTP/1.1 403 ")


@pytest.mark.parametrize("request_line", ["POST /mcp?x=1", "GET /state", "PATCH /a/b", "OPTIONS /"])
def test_a_door_to_http_lets_each_request_pass(request_line: str) -> None:
    (answer,) = asked(request_line, serves="http", key=None)
    method, target = request_line.split(" ")
    assert f"\r\n\r\n{method} /base{target} HTTP/1.1\r\n" in answer


def test_a_door_to_http_cannot_have_a_credential() -> None:
    with pytest.raises(UsageError, match="Authorization"):
        asked("GET /", serves="http")
