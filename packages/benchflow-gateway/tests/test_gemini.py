"""Gemini's wire: its path, its streams, and its requests in the words of other wires."""

import json
from typing import Any

import pytest
from benchflow_contracts import Endpoint, Usage
from benchflow_gateway.errors import RefusedError
from benchflow_gateway.sse import Event
from benchflow_gateway.translate import translate_request
from benchflow_gateway.translate.delta import (
    AnswerEnd,
    AnswerStart,
    ArgumentsDelta,
    CallStart,
    Delta,
    TextDelta,
    ThoughtDelta,
)
from benchflow_gateway.translate.gemini_request import read_gemini
from benchflow_gateway.translate.gemini_stream import GeminiWriter
from benchflow_gateway.wires import CHAT, GEMINI, MESSAGES, Wire
from gateway_peers import GEMINI_STREAM, Taken, agent_of, ask, hand_written, whole
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

WORDS = st.sampled_from(["a", "é\n\nb", '{"x": 1}', "data: ", "\u2028", "日本"])
OBJECT = st.dictionaries(WORDS, WORDS | st.sampled_from([None, -1, True]), max_size=2)
PART = st.one_of(
    st.builds(lambda t: {"text": t}, WORDS),
    st.builds(lambda t: {"text": t, "thought": True}, WORDS),
    st.builds(lambda t: {"text": t, "thoughtSignature": "s"}, WORDS),
    st.builds(lambda n, a: {"functionCall": {"id": "k", "name": n, "args": a}}, WORDS, OBJECT),
)
ANSWER = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi."}]}}]}


def answer_of(parts: list[dict[str, Any]], **ended: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **ended}
    return {"candidates": [candidate], "modelVersion": "m", "responseId": "r"}


# --- one wire -----------------------------------------------------------------------------


@given(st.lists(PART, max_size=4))
def test_a_body_is_its_stream(parts: list[dict[str, Any]]) -> None:
    body = {**answer_of(parts, finishReason="STOP"), "usageMetadata": {"promptTokenCount": 3}}
    fold = GEMINI.fold()
    for event in GEMINI.explode(body):
        fold.feed(event)
    assert (fold.body(), fold.complete) == (body, True)


def test_words_that_come_in_pieces_are_one_part_and_thoughts_are_another() -> None:
    fold = GEMINI.fold()
    for part in ({"text": "I ", "thought": True}, {"text": "see", "thought": True}):
        fold.feed(Event(None, json.dumps(answer_of([part]))))
    for text in ("Hel", "lo"):
        fold.feed(Event(None, json.dumps(answer_of([{"text": text}]))))
    assert not fold.ending
    fold.feed(Event(None, json.dumps(answer_of([], finishReason="STOP"))))
    body = fold.body() or {}
    parts = body["candidates"][0]["content"]["parts"]
    assert parts == [{"text": "I see", "thought": True}, {"text": "Hello"}]
    assert fold.complete


def test_a_blocked_prompt_is_a_whole_answer() -> None:
    fold = GEMINI.fold()
    fold.feed(Event(None, '{"promptFeedback": {"blockReason": "SAFETY"}}'))
    assert fold.complete


def test_thoughts_and_tools_count_with_their_tokens() -> None:
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 2,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 4,
        "cachedContentTokenCount": 5,
    }
    counted = GEMINI.usage({"usageMetadata": usage})
    assert counted == Usage(input_tokens=12, output_tokens=7, cached_tokens=5)


# --- to other wires -----------------------------------------------------------------------


def spoken(deltas: list[Delta]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the parts and the last candidate of what a writer says."""
    writer, fold = GeminiWriter(), GEMINI.fold()
    for delta in deltas:
        for event in writer.write(delta):
            fold.feed(event)
    assert fold.complete
    body = fold.body() or {}
    assert GEMINI.usage(body) == deltas[-1].usage  # type: ignore[union-attr]
    return body["candidates"][0]["content"]["parts"], body["candidates"][0]


@given(st.lists(WORDS, min_size=1, max_size=3), OBJECT)
def test_a_stream_says_what_it_was_made_from(pieces: list[str], arguments: Any) -> None:
    text = json.dumps(arguments)
    calls = [CallStart("k1", "write"), *(ArgumentsDelta(piece) for piece in (text[:3], text[3:]))]
    said: list[Delta] = [ThoughtDelta("Hm."), *(TextDelta(piece) for piece in pieces)]
    usage = Usage(input_tokens=5, output_tokens=2, cached_tokens=1)
    parts, last = spoken(
        [AnswerStart("r", "m"), *said, *calls, CallStart("k2", "read"), AnswerEnd("tool", usage)]
    )
    assert parts == [
        {"text": "Hm.", "thought": True},
        {"text": "".join(pieces)},
        {"functionCall": {"id": "k1", "name": "write", "args": arguments}},
        {"functionCall": {"id": "k2", "name": "read", "args": {}}},
    ]
    assert last["finishReason"] == "STOP"


def test_arguments_that_are_not_an_object_are_a_malformed_call() -> None:
    made: list[Delta] = [
        AnswerStart("r", "m"),
        CallStart("k", "write"),
        ArgumentsDelta('{"path": "a'),
    ]
    parts, last = spoken([*made, AnswerEnd("tool", Usage())])
    assert (parts, last["finishReason"]) == ([], "MALFORMED_FUNCTION_CALL")


PICTURE = {"mimeType": "image/png", "data": "AA"}
SCHEMA = {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}}
REQUEST: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Go."}, {"inlineData": PICTURE}]},
        {
            "role": "model",
            "parts": [
                {"text": "I think.", "thought": True},
                {"text": "Yes."},
                {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "s"},
                {"functionCall": {"name": "read", "args": {"path": "b"}}},
                {"functionCall": {"id": "mine", "name": "write", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "read", "response": {"output": "A"}}},
                {"functionResponse": {"name": "read", "response": {"error": "no b"}}},
                {"functionResponse": {"id": "mine", "name": "write", "response": {"ok": True}}},
            ],
        },
    ],
    "tools": [
        {
            "functionDeclarations": [
                {"name": "read", "parameters": SCHEMA},
                {"name": "write", "parametersJsonSchema": {"type": "object"}},
            ]
        },
        {"googleSearch": {}},
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["write"]}},
    "generationConfig": {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 7,
        "stopSequences": ["END"],
        "thinkingConfig": {"includeThoughts": True},
    },
}  # fmt: skip


def test_a_request_has_the_same_content_for_a_chat_server() -> None:
    sent, _ = translate_request(REQUEST, GEMINI, CHAT)
    system, user, assistant, *results = sent["messages"]
    assert (sent["model"], sent["stream"], system["content"]) == ("m", True, "Be brief.")
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,AA"
    assert assistant["content"] == "Yes."
    calls = assistant["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"path": "a"},
        {"path": "b"},
        {},
    ]
    # Calls without an id are told apart by their order.
    assert [result["tool_call_id"] for result in results] == [call["id"] for call in calls]
    assert len({call["id"] for call in calls}) == 3
    assert [result["content"] for result in results] == ["A", "no b", '{"ok": true}']
    schema = sent["tools"][0]["function"]["parameters"]
    assert schema == {"type": "object", "properties": {"path": {"type": "string"}}}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["read", "write"]
    assert sent["tool_choice"]["function"]["name"] == "write"
    kept = {key: sent[key] for key in ("temperature", "top_p", "max_tokens", "stop")}
    assert kept == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stop": ["END"]}


def test_a_request_has_the_same_content_for_an_anthropic_server() -> None:
    sent, _ = translate_request(REQUEST, GEMINI, MESSAGES)
    results = sent["messages"][2]["content"]
    assert [result.get("is_error", False) for result in results] == [False, True, False]
    assert sent["tool_choice"] == {"type": "tool", "name": "write"}


def test_an_answer_in_json_is_requested_with_its_schema() -> None:
    config = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
    prompt = read_gemini({"model": "m", "contents": [], "generationConfig": config})
    assert prompt.schema == {"name": "answer", "schema": {"type": "object"}}


@pytest.mark.parametrize("back", [CHAT, MESSAGES], ids=lambda wire: wire.api)
@pytest.mark.parametrize(
    "request_",
    [
        {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "A"}}]}]},
        {"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]},
        {"generationConfig": {"candidateCount": 2}},
        {"cachedContent": "cachedContents/1"},
    ],
    ids=["audio", "file", "candidates", "cache"],
)
def test_what_the_other_wire_cannot_say_is_refused_by_name(
    back: Wire, request_: dict[str, Any]
) -> None:
    with pytest.raises(RefusedError, match="cannot be forwarded") as refused:
        translate_request({"model": "m", **request_}, GEMINI, back)
    assert refused.value.status == 400


# --- over sockets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "sent"),
    [("m", "m"), ("Org/A-7b:free", "Org/A-7b:free")],
)
def test_the_model_of_the_path_is_requested_and_recorded(run, llm, named: str, sent: str) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            path = f"/v1beta/models/{named}:generateContent"
            async with agent.session.post(agent.base + path, json=ask("gemini")) as answer:
                assert answer.status == 200, await answer.text()
        (call,) = line.calls()
        assert (call.request["model"], call.request["stream"]) == (sent, False)
        assert (call.api, call.model, call.purpose) == ("gemini", sent, "main")

    run(body, kind="openai")
    assert [request.model for request in llm.requests] == [sent]


def test_one_model_is_requested_for_every_model_in_the_path(run, llm) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            await agent.json("gemini")

    run(body, kind="same", model="theirs")
    assert [(request.wire, request.model) for request in llm.requests] == [("gemini", "theirs")]


def test_google_gets_its_key_where_it_takes_one_and_nothing_of_the_agents(run) -> None:
    taken: list[Taken] = []

    async def body(gateway: Any) -> None:
        async def behave(request: Taken) -> None:
            taken.append(request)
            await request.write(whole(ANSWER))

        async with hand_written(behave) as upstream:
            base = upstream.url.removesuffix("/v1")
            headers = {"Authorization": "Bearer sk-real", "x-api-key": "sk-real"}
            endpoint = Endpoint(url=base, headers=headers)
            line = await gateway.open("r", "n", upstream=endpoint)
            async with agent_of(line) as agent:
                url = agent.base + GEMINI_STREAM + "&key=box-dummy"
                async with agent.session.post(url, json=ask("gemini")) as answer:
                    assert "Hi." in await answer.text()

    run(body, kind="same")
    assert taken[0].path == GEMINI_STREAM
    assert taken[0].headers["x-goog-api-key"] == "sk-real"
    assert "authorization" not in taken[0].headers
    assert "box-dummy" not in str(taken[0].headers)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1beta/models", 404),
        ("/v1beta/models/m:embedContent", 404),
        ("/v1beta/models/../m:generateContent", 404),
        ("/v1beta/models/m/..:generateContent", 404),
        ("/v1betamodels/m:generateContent", 404),
        ("/v1beta/models/m:streamGenerateContent", 400),
        ("/v1beta/models/m:countTokens", 404),
    ],
)
def test_a_path_that_is_not_a_call_does_not_reach_an_upstream(
    run, llm, path: str, status: int
) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        host, _, base = line.endpoint.url.removeprefix("http://").partition("/")
        async with agent_of(line) as agent:
            # Written by hand, since a client resolves dots.
            url = URL(f"http://{host}/{base}{path}", encoded=True)
            async with agent.session.post(url, json=ask("gemini")) as answer:
                assert answer.status == status, await answer.text()

    run(body, kind="openai")
    assert llm.requests == []


def test_tokens_are_counted_by_an_upstream_of_the_same_wire(run, llm) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            url = agent.base + "/v1beta/models/m:countTokens"
            async with agent.session.post(url, json=ask("gemini")) as answer:
                assert await answer.json() == {"totalTokens": 11}
        assert line.calls() == ()

    run(body, kind="same")
