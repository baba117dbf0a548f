"""The policy agent's readers, against any bytes that a server may send."""

import asyncio
import contextlib
import json
import select
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from benchflow_agent_policy.in_sandbox.completion import BadReplyError, read_completion
from benchflow_agent_policy.in_sandbox.errors import HttpError, ToolError
from benchflow_agent_policy.in_sandbox.http_call import HttpCall
from benchflow_agent_policy.in_sandbox.mcp_connection import HttpConnection
from benchflow_agent_policy.in_sandbox.session import Session
from benchflow_agent_policy.in_sandbox.settings import Settings
from benchflow_agent_policy.in_sandbox.token_chain import TokenChain
from benchflow_agent_policy.in_sandbox.tool import clip
from hypothesis import given, settings
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MESSAGE = st.fixed_dictionaries(
    {}, optional={"role": JSON, "content": JSON, "tool_calls": JSON, "reasoning_content": JSON}
)


@given(MESSAGE, JSON, JSON)
def test_any_reply_is_read_or_refused(message, usage, finish):
    response = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
    try:
        completion = read_completion(response)
    except BadReplyError:
        return
    assert completion.message["role"] == "assistant"
    assert completion.input_tokens >= 0
    assert all(
        completion.message[key] == message[key] for key in message if message[key] and key != "role"
    )


@given(JSON)
def test_a_reply_without_a_completion_is_refused(response):
    body = response if isinstance(response, dict) else {"choices": response}
    with contextlib.suppress(BadReplyError):
        read_completion(body)


@given(st.lists(st.integers(0, 200_000), min_size=1), st.lists(st.integers(0, 200_000)), JSON)
def test_a_prompt_that_continues_is_a_link_and_any_other_a_break(prompt, more, junk):
    chain = TokenChain()
    chain.feed({"prompt_token_ids": prompt, "choices": [{"token_ids": [7]}]})
    chain.feed({"prompt_token_ids": [*prompt, 7, *more], "choices": [{"token_ids": []}]})
    chain.feed({"prompt_token_ids": [prompt[0] + 1, *prompt[1:], 7, *more], "choices": []})
    assert chain.report() == {"links": 1, "breaks": 1}
    chain.feed({"prompt_token_ids": junk})


@given(st.text(), st.integers(2, 50))
def test_a_clipped_text_keeps_its_start_and_end(text, limit):
    short = clip(text, limit)
    assert short == text or (
        short.startswith(text[: limit // 2]) and short.endswith(text[-(limit // 2) :])
    )


@pytest.mark.parametrize("name", ["../policy-1", "policy-1/../x", "policy-", "x", ""])
def test_a_session_id_cannot_name_another_file(name):
    with pytest.raises(ValueError, match="not a session id"):
        Session.load(name)


def test_sampling_cannot_replace_the_agents_messages():
    sampling = {"temperature": 0.5, "messages": [], "stream": True}
    settings = Settings.from_env(
        {"BENCHFLOW_POLICY_SAMPLING": json.dumps(sampling), "BENCHFLOW_POLICY_MAX_CALLS": "3"}
    )
    assert settings.sampling == {"temperature": 0.5}
    assert settings.max_calls == 3


class SilentClient:
    """A wire whose client says nothing."""

    def wait(self, fd, seconds, *, events=1):
        poll = select.poll()
        poll.register(fd, events)
        return bool(poll.poll(max(0, seconds) * 1000))


class Answering:
    """A server that writes the given bytes to each connection and closes it."""

    def __init__(self, answer):
        self.answer = answer

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read(65536)
            writer.write(self.answer)
            await writer.drain()
        writer.close()


def fetch(answer, limit=1000):
    def read(url):
        with HttpCall(SilentClient(), url, b"{}", {}, timeout=30) as call:
            return call.status, call.read(limit)

    async def body():
        async with Answering(answer) as url:
            return await asyncio.to_thread(read, url)

    return asyncio.run(body())


@settings(max_examples=40)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_response_or_a_typed_error(junk):
    for answer in (junk, b"HTTP/1.1 200 OK\r\n" + junk):
        with contextlib.suppress(HttpError):
            status, data = fetch(answer)
            assert len(data) <= 1000
            assert 100 <= status <= 999


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
    ],
)
def test_every_framing_is_read(answer, read):
    assert fetch(answer) == (200, read)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "RemoteDisconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", "cut|IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhi", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000, "larger than 1000"),
    ],
)
def test_a_cut_or_endless_response_is_an_error(answer, says):
    with pytest.raises(HttpError, match=says):
        fetch(answer)


class McpOverHttp(BaseHTTPRequestHandler):
    """Answers `initialize` as JSON and everything else as an event stream."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = {"jsonrpc": "2.0", "id": body.get("id"), "result": {"for": body["method"]}}
        self.send_response(200)
        if body["method"] == "initialize":
            self.send_header("Mcp-Session-Id", "s-1")
            self.send_header("Content-Type", "application/json")
            data = json.dumps(reply).encode()
        else:
            assert self.headers["Mcp-Session-Id"] == "s-1"
            self.send_header("Content-Type", "text/event-stream")
            note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"})
            data = f": hello\n\ndata: {note}\n\nevent: message\r\ndata: {json.dumps(reply)}\r\n\r\n"
            data = data.encode()
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def test_a_tool_server_over_http_answers_as_json_and_as_events():
    server = ThreadingHTTPServer(("127.0.0.1", 0), McpOverHttp)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        rpc = HttpConnection(SilentClient(), {"url": url})
        assert rpc.call("initialize", {}, 30) == {"for": "initialize"}
        assert rpc.call("tools/list", {}, 30) == {"for": "tools/list"}
        rpc.notify("notifications/initialized")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(ToolError, match="cannot be reached"):
        rpc.call("tools/list", {}, 30)
