"""Calls over real sockets: passed on, translated, recorded, cut, refused."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from benchflow_contracts import CallBudget, Endpoint, PolicyEndpoint, UpstreamAnswer, UsageError
from benchflow_contracts.pausing import PauseSwitch, pausable_by
from benchflow_gateway import CallBudgetError, Limits, Price
from benchflow_gateway.sse import SseReader
from benchflow_gateway.wires import WIRES
from gateway_peers import KEY, STREAM_HEAD, Taken, agent_of, ask, chunk, hand_written, whole

APIS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
WIRE = {wire.api: wire for wire in WIRES}


def folded(api: str, text: str) -> dict[str, Any]:
    fold, reader = WIRE[api].fold(), SseReader(1 << 20)
    for frame in [*reader.feed(text.encode()), *reader.finish()]:
        if frame.event is not None:
            fold.feed(frame.event)
    assert fold.complete
    assert fold.failure is None
    return fold.body() or {}


def said(api: str, body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the text, the tool and its arguments of an answer."""
    if api == "openai-chat":
        message = body["choices"][0]["message"]
        function = message["tool_calls"][0]["function"]
        return message["content"], function["name"], json.loads(function["arguments"])
    if api == "openai-responses":
        message, call = body["output"]
        return message["content"][0]["text"], call["name"], json.loads(call["arguments"])
    if api == "gemini":
        text, part = body["candidates"][0]["content"]["parts"]
        return text["text"], part["functionCall"]["name"], part["functionCall"]["args"]
    text, use = body["content"]
    return text["text"], use["name"], use["input"]


@pytest.mark.parametrize("kind", ["same", "openai", "vllm", "anthropic"])
def test_every_wire_reaches_every_upstream_streamed_or_not(run, llm, kind: str) -> None:
    async def body(gateway: Any) -> None:
        endpoint = Endpoint(url=llm.url, headers={"Authorization": KEY})
        line = await gateway.open("r", "n", upstream=endpoint)
        async with agent_of(line) as agent:
            for api in APIS:
                plain = await agent.json(api)
                usage = {"stream_options": {"include_usage": True}} if api != "gemini" else {}
                status, text = await agent.post(api, stream=True, **usage)
                assert status == 200
                streamed = folded(api, text)
                expected = ("I will write the file.", "write_file")
                arguments = {"path": "hello.txt", "content": "hi"}
                assert said(api, plain) == said(api, streamed) == (*expected, arguments)
                # The record holds what the agent got, also of a stream.
                assert [call.response for call in line.calls()[-2:]] == [plain, streamed]
        calls = line.calls()
        assert [call.api for call in calls] == [api for api in APIS for _ in range(2)]
        assert {(call.status, call.error, call.purpose) for call in calls} == {(200, None, "main")}
        assert {(call.usage.input_tokens, call.usage.output_tokens) for call in calls} == {(11, 7)}
        assert [call.request for call in calls[:2]] == [
            ask("openai-chat"),
            ask("openai-chat", stream=True, stream_options={"include_usage": True}),
        ]

        backs = {"openai": "openai-chat", "vllm": "openai-chat", "anthropic": "anthropic-messages"}
        for call, sent in zip(calls, llm.requests, strict=True):
            if call.api == backs.get(kind, call.api):
                assert (call.upstream_api, call.upstream_request) == (None, {})
                assert call.upstream_response is None
            else:
                # The record holds both sides of a translated call.
                assert (call.upstream_api, call.upstream_request) == (backs[kind], sent.raw)
                assert "token_ids" not in str(call.upstream_response)
                assert said(backs[kind], call.upstream_response)[1] == "write_file"

    run(body, kind=kind)
    sent = {request.wire for request in llm.requests}
    front = {"same": {"chat", "responses", "messages", "gemini"}, "anthropic": {"messages"}}
    assert sent == front.get(kind, {"chat"})


def test_tokens_are_recorded_and_sent_only_on_request(run, llm) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            first = await agent.json("openai-chat")
            choice = first["choices"][0]
            assert "prompt_token_ids" not in first
            assert not {"token_ids", "logprobs"} & set(choice)
            result = {"role": "tool", "tool_call_id": "call_1_0", "content": "ok"}
            messages = [*ask("openai-chat")["messages"], choice["message"], result]
            _, text = await agent.post("openai-chat", stream=True, messages=messages)
            assert "token_ids" not in text
            assert "logprobs" not in text
            assert '"usage"' not in text
            asked = await agent.json("openai-chat", return_token_ids=True, logprobs=True)
            assert asked["choices"][0]["token_ids"]
        one, two, three = line.calls()
        for call in (one, two, three):
            assert call.prompt_token_ids
            assert call.completion_token_ids
            assert len(call.logprobs) == len(call.completion_token_ids)
        known = one.prompt_token_ids + one.completion_token_ids
        assert two.prompt_token_ids[: len(known)] == known
        assert two.usage.output_tokens == 7

    run(body, kind="vllm")


def test_the_last_byte_is_sent_after_the_call_is_recorded(run) -> None:
    async def body(gateway: Any) -> None:
        go_on = asyncio.Event()

        async def behave(taken: Taken) -> None:
            assert taken.body["stream_options"] == {"include_usage": True}
            await taken.write(STREAM_HEAD + chunk("Hel"))
            await go_on.wait()
            await taken.write(chunk("lo") + chunk(None, "stop"))
            usage = {"prompt_tokens": 3, "completion_tokens": 2}
            await taken.write(chunk(usage=usage, choices=[]) + b"data: [DONE]\n\n")

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                url = agent.base + "/chat/completions"
                request = ask("openai-chat", stream=True)
                async with agent.session.post(url, json=request) as answer:
                    begun = await answer.content.readuntil(b"\n\n")
                    assert b"Hel" in begun
                    assert line.in_flight == 1
                    assert line.calls() == ()
                    assert await line.quiesce(0.01) is False
                    go_on.set()
                    seen = b""
                    while b'"finish_reason": "stop"' not in seen:
                        seen += await answer.content.readuntil(b"\n\n")
                    # Whoever sees the end finds the call recorded.
                    (call,) = line.calls()
                    rest = await answer.content.read()
            assert b"usage" not in seen + rest
            assert rest.endswith(b"data: [DONE]\n\n")
            assert call.response["choices"][0]["message"] == {"content": "Hello"}
            assert (call.usage.input_tokens, call.usage.output_tokens) == (3, 2)
            assert await line.quiesce(30) is True
            assert line.in_flight == 0

    run(body)


def test_an_agent_that_goes_away_cuts_its_upstream_and_is_charged(run) -> None:
    async def body(gateway: Any) -> None:
        cut = asyncio.Event()

        async def behave(taken: Taken) -> None:
            ids = chunk("a", prompt_token_ids=[1, 2, 3])
            await taken.write(STREAM_HEAD + ids + chunk("b"))
            await taken.gone.wait()
            cut.set()

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream, budget=CallBudget(tokens=5))
            async with agent_of(line) as agent:
                url = agent.base + "/chat/completions"
                request = ask("openai-chat", stream=True)
                async with agent.session.post(url, json=request) as answer:
                    await answer.content.readuntil(b"\n\n")
                    await answer.content.readuntil(b"\n\n")
                    answer.close()
                await asyncio.wait_for(cut.wait(), 30)
                assert await line.quiesce(30)
                (call,) = line.calls()
                assert call.error == "the agent went away"
                assert call.response["choices"][0]["message"]["content"] == "ab"
                assert (call.usage.input_tokens, call.usage.output_tokens) == (3, 2)
                status, text = await agent.post("openai-chat")
                assert status == 429
                assert json.loads(text)["error"]["code"] == "insufficient_quota"

    run(body)


def test_closing_a_line_cuts_its_calls_and_refuses_later_ones(run) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            await taken.write(STREAM_HEAD + chunk("a"))
            await taken.gone.wait()

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                url = agent.base + "/chat/completions"
                request = ask("openai-chat", stream=True)
                async with agent.session.post(url, json=request) as answer:
                    await answer.content.readuntil(b"\n\n")
                    await line.aclose()
                    await line.aclose()
                    with pytest.raises(aiohttp.ClientError):
                        await answer.content.read()
                assert [call.error for call in line.calls()] == ["the route was closed"]
                assert (await agent.post("openai-chat"))[0] == 404
            again = await gateway.open("r", "n", upstream=upstream)
            assert again.endpoint.url != line.endpoint.url
            assert len(again.calls()) == 1

    run(body)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (CallBudget(calls=1), "calls"),
        (CallBudget(tokens=18), "tokens"),
        (CallBudget(cost_usd=0.00001), "USD"),
    ],
)
def test_a_used_up_budget_is_told_in_the_agents_words(
    run, llm, api: str, budget: CallBudget, word: str
) -> None:
    async def body(gateway: Any) -> None:
        endpoint = Endpoint(url=llm.url)
        line = await gateway.open("r", "n", upstream=endpoint, budget=budget)
        async with agent_of(line) as agent:
            await agent.json(api)
            assert line.error is None
            async with agent.called(api, stream=True) as answer:
                error = (await answer.json())["error"]
                assert answer.headers["x-should-retry"] == "false"
            kinds = {"anthropic-messages": "billing_error", "gemini": "RESOURCE_EXHAUSTED"}
            assert error.get("type", error.get("status")) == kinds.get(api, "insufficient_quota")
            assert answer.status == (429 if api.startswith("openai") else 402)
            assert word in error["message"]
        first, second = line.calls()
        assert (first.error, second.status, second.response) == (None, answer.status, None)
        assert second.error.startswith("budget: ")
        assert isinstance(line.error, CallBudgetError)
        assert first.cost_usd == pytest.approx((11 * 1 + 7 * 2) / 1e6)

    run(body, prices={"m": Price(input=1, output=2)})
    assert len(llm.requests) == 1


def test_a_cost_budget_without_a_price_refuses(run, llm) -> None:
    async def body(gateway: Any) -> None:
        endpoint = Endpoint(url=llm.url)
        line = await gateway.open("r", "n", upstream=endpoint, budget=CallBudget(cost_usd=1))
        async with agent_of(line) as agent:
            assert (await agent.post("openai-chat"))[0] == 429
        assert "price" in str(line.error)

    run(body)
    assert llm.requests == []


def test_a_swap_sends_later_calls_elsewhere_and_says_which_weights_answered(run) -> None:
    async def body(gateway: Any) -> None:
        arrived, hold = asyncio.Event(), asyncio.Event()

        def server(name: str) -> Any:
            async def behave(taken: Taken) -> None:
                if name == "old":
                    arrived.set()
                    await hold.wait()
                message = {"role": "assistant", "content": name}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                await taken.write(whole({"choices": [choice]}, x_policy_version=name))

            return hand_written(behave)

        async with server("old") as old, server("new") as new:
            line = await gateway.open("r", "n", upstream=old)
            async with agent_of(line) as agent, asyncio.TaskGroup() as group:
                slow = group.create_task(agent.json("openai-chat"))
                await arrived.wait()
                await line.swap(new)
                fresh = await agent.json("openai-chat")
                hold.set()
                answers = [await slow, fresh]
            assert [a["choices"][0]["message"]["content"] for a in answers] == ["old", "new"]
            assert [call.policy_version for call in line.calls()] == ["old", "new"]

    run(body)


def test_a_call_in_flight_keeps_its_model_its_version_and_its_key_at_a_swap(run) -> None:
    async def body(gateway: Any) -> None:
        arrived, hold = asyncio.Event(), asyncio.Event()
        requested: list[str] = []

        def server(key: str) -> Any:
            async def behave(taken: Taken) -> None:
                requested.append(taken.body["model"])
                if key == "sk-of-the-old-weights":
                    arrived.set()
                    await hold.wait()
                # A careless server repeats its key.
                message = {"role": "assistant", "content": f"key: {key}"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                await taken.write(whole({"choices": [choice]}))

            return hand_written(behave)

        def policy(endpoint: Endpoint, key: str, version: str) -> PolicyEndpoint:
            headers = {"Authorization": f"Bearer {key}"}
            return PolicyEndpoint(
                url=endpoint.url, headers=headers, policy_version=version, model=f"model-{version}"
            )

        old_key, new_key = "sk-of-the-old-weights", "sk-of-the-new-weights"
        async with server(old_key) as old, server(new_key) as new:
            line = await gateway.open("r", "n", upstream=policy(old, old_key, "1"))
            async with agent_of(line) as agent, asyncio.TaskGroup() as group:
                slow = group.create_task(agent.json("openai-chat"))
                await arrived.wait()
                await line.swap(policy(new, new_key, "2"))
                fresh = await agent.json("openai-chat")
                hold.set()
                answers = [await slow, fresh]
        contents = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert contents == ["key: [redacted]"] * 2
        assert requested == ["model-1", "model-2"]
        assert [(c.policy_version, c.model) for c in line.calls()] == [
            ("1", "model-1"),
            ("2", "model-2"),
        ]

    run(body)


@pytest.mark.parametrize("is_stream", [False, True])
def test_experts_and_the_last_version_are_recorded_and_not_sent_to_the_agent(
    run, is_stream: bool
) -> None:
    experts = {"data": "AQIDBA==", "shape": [4, 1, 1], "start": 0}
    tokens = {"token_ids": [3, 4], "logprobs": {"content": [{"logprob": -1}, {"logprob": -2}]}}
    tokens["sampling_mask"] = [[9, 3], [4]]
    ids = {"prompt_token_ids": [1, 2, 3]}

    async def behave(taken: Taken) -> None:
        end = {"finish_reason": "stop", "index": 0, "routed_experts": experts}
        if not is_stream:
            message = {"role": "assistant", "content": "a"}
            body = {"choices": [{**end, **tokens, "message": message}], **ids}
            await taken.write(whole({**body, "policy_version": "8"}, x_policy_version="7"))
            return
        first = {"choices": [{"index": 0, "delta": {"content": "a"}, **tokens}], **ids}
        last = {"choices": [{**end, "delta": {}}], "policy_version": "8"}
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
        await taken.write(f"{head}x-policy-version: 7\r\n\r\n".encode())
        for data in (json.dumps(first), json.dumps(last), "[DONE]"):
            await taken.write(f"data: {data}\n\n".encode())

    async def body(gateway: Any) -> None:
        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                status, answer = await agent.post("openai-chat", stream=is_stream)
        assert (status, "experts" in answer) == (200, False)
        [call] = line.calls()
        assert (call.policy_version, call.end_policy_version, call.is_mixed) == ("7", "8", True)
        assert call.routed_experts is not None
        assert call.routed_experts.rows(3, 5).tolist() == [[[4]], [[4]]]
        assert call.sampling_mask is not None
        assert call.sampling_mask.tolist() == [[9, 3], [4]]
        assert "routed_experts" not in str(call.response)
        assert "sampling_mask" not in str(call.response)

    run(body, kind="vllm")


def test_no_credential_is_recorded_or_told_and_the_boxes_own_are_dropped(
    run, tmp_path: Path
) -> None:
    seen: list[Taken] = []

    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            seen.append(taken)
            error = {"message": f"Incorrect key provided: {KEY.split()[1]}"}
            await taken.write(whole({"error": error}, status="401 Unauthorized"))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                for api in APIS:
                    status, text = await agent.post(api)
                    assert status == 401
                    assert "[redacted]" in text
                    assert "sk-the-real" not in text
            assert KEY not in repr(line.endpoint)

    run(body, kind="openai")
    assert {taken.headers["authorization"] for taken in seen} == {KEY}
    assert not any("x-api-key" in taken.headers for taken in seen)
    record = (tmp_path / "record" / "r" / "n.jsonl").read_text()
    assert record.count("\n") == len(APIS)
    assert "sk-the-real" not in record
    assert "box-dummy" not in record


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
        whole({}).replace(b"{}", b"[]"),
        STREAM_HEAD + chunk("half"),
        STREAM_HEAD + b"data: {nonsense\n\n",
        STREAM_HEAD + b"data: \xff\n\n",
        STREAM_HEAD + b'data: {"error": {"message": "out of memory"}}\n\n',
        STREAM_HEAD + b"data: " + b"x" * 70_000,
        b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy",
        b"nonsense\r\n\r\n",
        b"",
    ],
    ids=lambda data: data[:60].decode("latin-1"),
)
def test_a_broken_upstream_is_an_error_in_the_agents_wire(run, sent: bytes, stream: bool) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            await taken.write(sent)

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                for api in APIS:
                    status, text = await agent.post(api, stream=stream)
                    assert "error" in text
                    assert status in ({200, 502, 503} if stream else {502, 503})
            calls = line.calls()
            assert len(calls) == len(APIS)
            assert all(call.error for call in calls)

    run(body, kind="openai", limits=Limits(event_bytes=65_536))


def test_a_429_reaches_the_agent_and_is_reported_and_a_refusal_is_not(run) -> None:
    heard: list[UpstreamAnswer] = []

    async def body(gateway: Any) -> None:
        gateway.on_answer = heard.append
        waits = iter([{"retry_after": "7"}, {"retry_after_ms": "1500"}, {"retry_after": "soon"}])

        async def behave(taken: Taken) -> None:
            await taken.write(whole({"error": "slow"}, "429 Too Many Requests", **next(waits)))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream, budget=CallBudget(calls=3))
            async with agent_of(line) as agent:
                async with agent.called("openai-chat") as answer:
                    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
                # The fourth call is refused by the budget, which says nothing of the upstream.
                assert [(await agent.post("openai-chat"))[0] for _ in range(3)] == [429] * 3
        waited = [7, 1.5, None]
        assert heard == [UpstreamAnswer(upstream.url, 429, after) for after in waited]

    run(body)


def test_an_unreachable_upstream_is_a_502(run) -> None:
    async def body(gateway: Any) -> None:
        async with hand_written(lambda taken: asyncio.sleep(0)) as upstream:
            pass
        line = await gateway.open("r", "n", upstream=upstream)
        async with agent_of(line) as agent:
            status, text = await agent.post("anthropic-messages")
        assert status == 502
        assert json.loads(text)["type"] == "error"

    run(body)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"model": NaN}', 400),
        (b'{"a": ' + b"[" * 20_000, 400),
        (b'{"a": "\\ud800"}', 400),
        (b"\xff", 400),
        (b'{"a": [' + b"[]," * 40_000 + b"1]}", 413),
        (b'{"a": [' + b'"",' * 40_000 + b"1]}", 413),
        (b'{"a": "' + b"x" * 200_000 + b'"}', 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_malformed_request_is_refused_and_counted(run, llm, data: bytes, status) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            for sent in (data, _pieces(data)):
                url = agent.base + "/v1/messages"
                async with agent.session.post(url, data=sent) as answer:
                    assert answer.status == status
                    assert (await answer.json())["type"] == "error"
            assert await agent.json("openai-chat")
        *refused, answered = line.calls()
        assert [(call.request, call.status) for call in refused] == [({}, status)] * 2
        assert all(call.error for call in refused)
        assert answered.status == 200

    async def _pieces(data: bytes) -> Any:
        for start in range(0, len(data), 50_000):
            yield data[start : start + 50_000]

    run(body, limits=Limits(request_bytes=150_000, request_values=30_000))


def test_nobody_reaches_a_line_without_its_whole_address(run, llm) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        base, _, token = line.endpoint.url.rpartition("/")
        assert base.endswith("/r/r/n/n")
        assert len(token) == 32
        wrong = [f"{base}/{token[:-1]}", f"{base}/{'x' * 32}", base]
        wrong += [base.replace("/r/r/", "/r/other/") + f"/{token}", f"{base}/{token}/v1/files"]
        async with agent_of(line) as agent:
            for url in wrong:
                async with agent.session.post(f"{url}/chat/completions", json={}) as answer:
                    assert answer.status == 404, url
            async with agent.session.get(f"{line.endpoint.url}/v1/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "scripted"
        for name in ("", "..", "a/b", "a b", "x" * 200):
            with pytest.raises(UsageError):
                await gateway.open("r", name, upstream=line.endpoint)
        with pytest.raises(UsageError):
            await gateway.open("r", "n", upstream=line.endpoint)
        assert line.calls() == ()

    run(body)


def test_a_slow_agent_does_not_hold_its_call_for_ever(run) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            await taken.write(STREAM_HEAD)
            while not taken.gone.is_set():
                await taken.write(chunk("x" * 60_000))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                url = agent.base + "/chat/completions"
                request = ask("openai-chat", stream=True)
                async with agent.session.post(url, json=request) as answer:
                    assert await line.quiesce(60), "the call did not end"
                    answer.close()
            (call,) = line.calls()
            assert call.error == "the agent went away"

    run(body, limits=Limits(write_sec=0.2, response_bytes=1 << 40))


def test_a_body_that_does_not_come_is_refused(run, llm) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        path = line.endpoint.url.partition("//")[2].partition("/")
        host, _, port = path[0].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /{path[2]}/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
        writer.write(head.encode() + b"{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
        writer.close()
        two = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"
        for hostile in (
            b"POST / HTTP/1.1\r\nHost: x\r\n" + two + b"\r\n",
            b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
            b"\x16\x03\x01\x00\x00\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(hostile)
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 30)
            writer.close()
        assert [(call.request, call.status) for call in line.calls()] == [({}, 408)]

    run(body, limits=Limits(body_sec=0.1))


def test_during_a_pause_no_call_goes_out_and_no_answer_comes_back(run) -> None:
    switch, reached = PauseSwitch(), list[Taken]()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def behave(taken: Taken) -> None:
        reached.append(taken)
        await taken.write(STREAM_HEAD + chunk("a"))
        begun.set()
        await may_end.wait()
        # More than the sockets between the two can hold: the gateway has to read on.
        for _ in range(40):
            await taken.write(chunk("b" * 100_000))
        await taken.write(chunk(finish="stop") + b"data: [DONE]\n\n")

    async def body(gateway: Any) -> None:
        async with hand_written(behave) as upstream:
            with pausable_by(switch):
                line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent, asyncio.TaskGroup() as group:
                first = group.create_task(agent.post("openai-chat", stream=True))
                await begun.wait()
                switch.pause()
                may_end.set()
                second = group.create_task(agent.post("openai-chat", stream=True))
                while not (line.calls() and line.in_flight == 2):
                    await asyncio.to_thread(threading.Event().wait, 0.01)
                assert len(reached) == 1
                assert not first.done()
                switch.resume()
                status, text = await first
                assert (status, text.count("b" * 100_000)) == (200, 40)
                assert text.endswith("data: [DONE]\n\n")
                assert (await second)[0] == 200
        assert [call.error for call in line.calls()] == [None, None]

    run(body)
