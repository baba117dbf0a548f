"""The chat endpoint over token engines, with the real package `renderers`."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from aiohttp import web
from benchflow_contracts import Endpoint, UsageError
from benchflow_gateway.errors import RefusedError
from benchflow_gateway.rendering import (
    ChatRequest,
    ChatRequestError,
    Conversations,
    EngineKind,
    RenderingEndpoint,
    Sampling,
    load_renderer,
    serve_rendering,
)
from benchflow_gateway.rendering.engines import engine_of
from gateway_peers import agent_of
from hypothesis import given
from hypothesis import strategies as st
from token_engine import TokenEngine, make_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": "hello"}}\n</tool_call><|im_end|>'
DONE = "hello hello<|im_end|>"
USER = {"role": "user", "content": "say hello"}


class Setup:
    """An engine with scripted texts behind the endpoint."""

    def __init__(self, tmp_path: Path, *texts: str, kind: EngineKind = "vllm", **options: Any):
        self.tokenizer = make_tokenizer(tmp_path / "tokenizer.json")
        self.engine = TokenEngine(self.tokenizer, texts)
        self.renderer = load_renderer("qwen3", tmp_path, thinking=options.pop("thinking", False))
        self.kind, self.options = kind, options

    def run(self, body: Callable[["Client"], Any]) -> Any:
        async def main() -> Any:
            async with AsyncExitStack() as stack:
                url = await stack.enter_async_context(self.engine.serving())
                serving = serve_rendering(self.renderer, self.kind, url, **self.options)
                endpoint, base = await stack.enter_async_context(serving)
                session = await stack.enter_async_context(aiohttp.ClientSession())
                return await body(Client(endpoint, base, session))

        return asyncio.run(main())


class Client:
    def __init__(self, endpoint: RenderingEndpoint, base: str, session: Any) -> None:
        self.endpoint, self.base, self.session = endpoint, base, session

    async def send(self, body: Any) -> tuple[int, dict[str, Any]]:
        async with self.session.post(f"{self.base}/chat/completions", json=body) as answer:
            return answer.status, await answer.json()

    async def say(self, messages: list[Any], **more: Any) -> dict[str, Any]:
        status, body = await self.send({"model": "m", "messages": messages, **more})
        assert status == 200, body
        return body


def tokens_of(body: dict[str, Any]) -> list[int]:
    """Return all tokens of a completion: its prompt, and what the model sampled."""
    return [*body["prompt_token_ids"], *body["choices"][0]["token_ids"]]


def answer_to(body: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """Return the model's message, and the result of its tool call."""
    message = body["choices"][0]["message"]
    call = message["tool_calls"][0]["id"]
    return [message, {"role": "tool", "tool_call_id": call, "content": text}]


@pytest.mark.parametrize("kind", ["vllm", "skyrl", "sglang"])
def test_the_next_prompt_begins_with_exactly_the_sampled_tokens(
    tmp_path: Path, kind: EngineKind
) -> None:
    setup = Setup(tmp_path, CALL, CALL, DONE, kind=kind)

    async def body(client: Client) -> None:
        first = await client.say([USER], tools=TOOLS)
        choice = first["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {
            "name": "shell",
            "arguments": '{"command": "hello"}',
        }
        # The tokenizer has a token for "hello", and the model did not sample it.
        hello = setup.tokenizer.token_to_id("hello")
        assert hello not in choice["token_ids"]
        assert hello in first["prompt_token_ids"]
        messages = [USER, *answer_to(first, "ok")]
        second = await client.say(messages, tools=TOOLS)
        assert second["prompt_token_ids"][: len(tokens_of(first))] == tokens_of(first)
        third = await client.say([*messages, *answer_to(second, "ok")], tools=TOOLS)
        assert third["prompt_token_ids"][: len(tokens_of(second))] == tokens_of(second)
        assert third["choices"][0]["message"]["content"] == "hello hello"
        assert [len(b["choices"][0]["logprobs"]["content"]) for b in (first, third)] == [
            len(b["choices"][0]["token_ids"]) for b in (first, third)
        ]
        status = client.endpoint.status()
        assert status == {
            "prompts": {"first": 1, "extended": 2},
            "breaks": 0,
            "missing_logprobs": 0,
        }

    setup.run(body)
    sent = setup.engine.requests[1]
    stop = setup.tokenizer.token_to_id("<|im_end|>")
    assert stop in sent["sampling_params"]["stop_token_ids"]


def test_children_of_a_fork_share_the_tokens_before_it(tmp_path: Path) -> None:
    setup = Setup(tmp_path, CALL, DONE, DONE)

    async def body(client: Client) -> None:
        first = await client.say([USER], tools=TOOLS)
        history = [USER, *answer_to(first, "ok")]
        children = [await client.say(history, tools=TOOLS) for _ in range(2)]
        assert children[0]["prompt_token_ids"] == children[1]["prompt_token_ids"]

    setup.run(body)


def test_a_template_that_forgets_thoughts_is_a_counted_break(tmp_path: Path) -> None:
    thought = "<think>\nhello\n</think>\n\nok<|im_end|>"
    setup = Setup(tmp_path, thought, DONE, thinking=True)

    async def body(client: Client) -> None:
        first = await client.say([USER])
        message = first["choices"][0]["message"]
        assert message["reasoning_content"].strip() == "hello"
        again = [USER, message, {"role": "user", "content": "again"}]
        second = await client.say(again)
        assert second["benchflow"] == {"prompt": "refused"}
        assert second["prompt_token_ids"][: len(tokens_of(first))] != tokens_of(first)
        assert client.endpoint.status()["breaks"] == 1

    setup.run(body)


def test_a_message_that_was_not_sampled_here_is_a_counted_break(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        foreign = {"role": "assistant", "content": "ok"}
        answer = await client.say([USER, foreign, USER])
        assert answer["benchflow"] == {"prompt": "unknown"}
        assert client.endpoint.status()["breaks"] == 1

    Setup(tmp_path, DONE).run(body)


def test_an_edited_message_of_the_model_is_rendered_as_it_is_now(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        first = await client.say([USER])
        edited = {**first["choices"][0]["message"], "content": "ok ok"}
        second = await client.say([USER, edited, USER])
        assert second["benchflow"] == {"prompt": "unknown"}

    Setup(tmp_path, DONE, DONE).run(body)


def test_a_stream_has_the_same_tokens(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        request = {"model": "m", "messages": [USER], "stream": True}
        async with client.session.post(f"{client.base}/chat/completions", json=request) as answer:
            text = await answer.text()
        assert text.endswith("data: [DONE]\n\n")
        assert '"prompt_token_ids":[' in text
        assert '"token_ids":[' in text

    Setup(tmp_path, DONE).run(body)


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_the_gateway_records_tokens_for_every_wire(tmp_path: Path, run: Any, api: str) -> None:
    setup = Setup(tmp_path, CALL, kind="sglang")

    async def body(gateway: Any) -> Any:
        async with (
            setup.engine.serving() as url,
            serve_rendering(setup.renderer, "sglang", url) as (_, base),
        ):
            route = await gateway.open("r", "n", upstream=Endpoint(url=base))
            async with agent_of(route) as agent:
                await agent.json(api)
            return route.calls()

    (call,) = run(body, kind="vllm")
    assert call.error is None
    assert call.prompt_token_ids
    assert len(call.completion_token_ids) == len(call.logprobs) > 0
    assert call.policy_version == "step-7"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("fault", [None, "a row too few", "a row without its token"])
def test_the_sampling_mask_of_an_engine_is_recorded(
    tmp_path: Path, run: Any, kind: EngineKind, fault: str | None
) -> None:
    setup = Setup(tmp_path, CALL, kind=kind)

    def add_mask(body: dict[str, Any]) -> dict[str, Any]:
        ids = body["output_ids"] if kind == "sglang" else body["choices"][0]["token_ids"]
        rows = [[each, 3] for each in ids]
        if fault is not None:
            rows = rows[1:] + ([[]] if "without" in fault else [])
        if kind == "vllm":
            body["choices"][0]["sampling_mask"] = rows
            return body
        assert setup.engine.requests[-1]["return_sampling_mask"] is True
        inside = [-0.25] * len(ids)
        body["meta_info"] |= {
            "output_token_sampling_mask": rows,
            "output_token_sampling_logprobs": inside,
        }
        return body

    async def body(gateway: Any) -> Any:
        setup.engine.change = add_mask
        serving = serve_rendering(setup.renderer, kind, url, sampling_mask=kind == "sglang")
        async with serving as (_, base):
            route = await gateway.open("r", "n", upstream=Endpoint(url=base))
            async with agent_of(route) as agent:
                await agent.json("openai-chat")
            return route.calls()

    async def with_engine(gateway: Any) -> Any:
        nonlocal url
        async with setup.engine.serving() as url:
            return await body(gateway)

    url = ""
    (call,) = run(with_engine, kind="vllm")
    if fault is None:
        assert call.sampling_mask.tolist() == [[each, 3] for each in call.completion_token_ids]
        assert set(call.logprobs) == {-0.25 if kind == "sglang" else -0.5}
    else:
        assert call.sampling_mask is None


def test_an_engine_that_is_not_asked_for_masks_is_named(tmp_path: Path) -> None:
    setup = Setup(tmp_path, DONE)

    async def body() -> None:
        async with serve_rendering(setup.renderer, "vllm", "http://x", sampling_mask=True):
            pass

    with pytest.raises(UsageError, match="'vllm' is not asked for sampling masks"):
        asyncio.run(body())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 2}, "n:"),
        ({"stop": ["x"]}, "stop:"),
        ({"temperature": "hot"}, "temperature:"),
        ({"max_tokens": 0.5}, "max_tokens:"),
        ({"messages": []}, "messages:"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role:"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content:",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]:"),
    ],
)
def test_what_cannot_be_sampled_exactly_is_refused(
    tmp_path: Path, more: dict[str, Any], field: str
) -> None:
    async def body(client: Client) -> None:
        status, answer = await client.send({"model": "m", "messages": [USER], **more})
        assert status == 400
        assert answer["error"]["message"].startswith(field)

    setup = Setup(tmp_path)
    setup.run(body)
    assert setup.engine.requests == []


def test_a_prompt_that_fills_the_context_is_refused_in_openai_words(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        status, answer = await client.send({"model": "m", "messages": [USER]})
        assert status == 400
        assert "maximum context length" in answer["error"]["message"]

    Setup(tmp_path, context_tokens=10).run(body)


def test_tokens_without_every_log_probability_are_not_trainable(tmp_path: Path) -> None:
    def without_one(body: dict[str, Any]) -> dict[str, Any]:
        del body["choices"][0]["logprobs"]["content"][0]
        return body

    def unknown(body: dict[str, Any]) -> dict[str, Any]:
        body["choices"][0]["logprobs"]["content"][0]["logprob"] = -9999.0
        return body

    setup = Setup(tmp_path, DONE, DONE)

    async def body(client: Client) -> None:
        for change in (without_one, unknown):
            setup.engine.change = change
            assert (await client.say([USER]))["choices"][0]["logprobs"] is None
        assert client.endpoint.status()["missing_logprobs"] == 2

    setup.run(body)


def test_an_engine_that_fails_is_an_error_of_the_upstream(tmp_path: Path) -> None:
    setup = Setup(tmp_path, DONE, DONE)

    async def body(client: Client) -> None:
        setup.engine.change = lambda _: web.Response(status=503, text="no weights")
        status, answer = await client.send({"model": "m", "messages": [USER]})
        assert (status, "no weights" in answer["error"]["message"]) == (503, True)
        setup.engine.change = lambda _: web.Response(text="not json")
        assert (await client.send({"model": "m", "messages": [USER]}))[0] == 502

    setup.run(body)


_CHOICE_KEYS = ["choices", "token_ids", "logprobs", "content", "logprob", "finish_reason"]
_META_KEYS = ["output_ids", "meta_info", "output_token_logprobs", "weight_version", "type"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "token_ids",
                    "logprobs",
                    "content",
                    "logprob",
                    "finish_reason",
                    "output_ids",
                    "meta_info",
                    "output_token_logprobs",
                    "weight_version",
                    "type",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(answers=st.lists(_JSON, min_size=1, max_size=5), kind=st.sampled_from(["vllm", "sglang"]))
def test_no_answer_of_an_engine_gives_wrong_tokens(answers: list[Any], kind: EngineKind) -> None:
    class Reply:
        status = 200

        def __init__(self, body: Any) -> None:
            self.headers: dict[str, str] = {}
            self.body = body

        async def json(self, **_: Any) -> Any:
            return self.body

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    class Session:
        def post(self, *_: Any, **__: Any) -> Reply:
            return Reply(answers.pop(0))

    engine: Any = engine_of(kind, "http://x", Session())  # type: ignore[arg-type]

    async def main() -> None:
        while answers:
            try:
                sampled = await engine.sample([1], Sampling({}), [2], "m")
            except RefusedError:
                continue
            assert all(type(token) is int and token >= 0 for token in sampled.token_ids)
            assert sampled.logprobs is None or len(sampled.logprobs) == len(sampled.token_ids)

    asyncio.run(main())


def test_the_oldest_turns_are_forgotten_first(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer.json")
    renderer = load_renderer("qwen3", tmp_path, thinking=False)
    conversations = Conversations(renderer, max_tokens=100)
    requests = [
        ChatRequest.of({"model": "m", "messages": [{"role": "user", "content": f"{at}"}]})
        for at in range(3)
    ]
    message = {"role": "assistant", "content": "ok"}
    for request in requests:
        conversations.add(request, message, [1] * 40, [2] * 20)
    later = [
        ChatRequest.of({"model": "m", "messages": [*each.messages, message, USER]})
        for each in requests
    ]
    origins = [conversations.prompt(each)[1] for each in later]
    assert origins == ["unknown", "unknown", "extended"]


def test_a_wrong_family_or_tokenizer_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no family 'qwen99'"):
        load_renderer("qwen99", tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        load_renderer("qwen3", tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        load_renderer("qwen3", tmp_path)


def test_a_message_list_with_other_things_is_refused() -> None:
    with pytest.raises(ChatRequestError, match="expected a list of messages"):
        ChatRequest.of({"messages": [USER, 3]})


def test_an_engine_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(UsageError, match="the engine 'tinker' needs tinker") as error:
        engine_of("tinker", "http://x", None)  # type: ignore[arg-type]
    assert error.value.hint == "pip install tinker"
