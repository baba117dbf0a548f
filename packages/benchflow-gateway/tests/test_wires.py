"""Bodies to streams and back, in each wire and between them."""

import json
from typing import Any

import pytest
from benchflow_contracts import Usage
from benchflow_gateway.documents import DocumentError
from benchflow_gateway.errors import RefusedError
from benchflow_gateway.sse import Event
from benchflow_gateway.translate import translate_request
from benchflow_gateway.translate.chat_request import read_chat, write_chat
from benchflow_gateway.translate.chat_stream import ChatReader, ChatWriter
from benchflow_gateway.translate.delta import (
    AnswerEnd,
    AnswerStart,
    ArgumentsDelta,
    CallStart,
    Delta,
    TextDelta,
    ThoughtDelta,
)
from benchflow_gateway.translate.messages_request import read_messages, write_messages
from benchflow_gateway.translate.messages_stream import MessagesReader, MessagesWriter
from benchflow_gateway.translate.prompt import Image, Prompt, Result, Text, Tool, Turn, Use
from benchflow_gateway.translate.responses_request import read_responses
from benchflow_gateway.translate.responses_stream import ResponsesWriter
from benchflow_gateway.wires import CHAT, MESSAGES, RESPONSES, Wire
from hypothesis import given
from hypothesis import strategies as st

# Few but nasty: a strategy that draws characters takes minutes on a loaded machine.
WORDS = st.sampled_from(["a", "é\n\nb", '{"x": 1}', "data: ", "\u2028", " ", '\x00\\"', "日本"])
NAME = st.sampled_from(["write", "read", "ask"])
OBJECT = st.dictionaries(WORDS, WORDS | st.sampled_from([None, -1, True]), max_size=2)
COUNT = st.integers(0, 999)


def folded(wire: Wire, events: list[Event]) -> Any:
    fold = wire.fold()
    for index, event in enumerate(events):
        assert not fold.complete, f"{len(events) - index} events after the end"
        fold.feed(event)
    assert fold.complete
    assert fold.ending
    return fold.body()


# --- one wire: explode and fold -------------------------------------------------------------

CALL = st.builds(
    lambda i, n, a: {"id": i, "type": "function", "function": {"name": n, "arguments": a}},
    WORDS,
    NAME,
    OBJECT.map(json.dumps),
)
CHAT_BODY = st.builds(
    lambda text, calls, tokens, usage: {
        "id": "c",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text}
                | ({"tool_calls": calls} if calls else {}),
                "finish_reason": "stop",
                **tokens,
            }
        ],
        "usage": {"prompt_tokens": usage, "completion_tokens": 1},
    },
    WORDS,
    st.lists(CALL, max_size=2),
    st.sampled_from([{}, {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1.0}]}}]),
    COUNT,
)
BLOCK = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, WORDS),
    st.builds(lambda t: {"type": "thinking", "thinking": t, "signature": "s"}, WORDS),
    st.builds(
        lambda i, n, a: {"type": "tool_use", "id": i, "name": n, "input": a}, WORDS, NAME, OBJECT
    ),
    st.builds(lambda d: {"type": "redacted_thinking", "data": d}, WORDS),
)
MESSAGES_BODY = st.builds(
    lambda blocks, count: {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": blocks,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": count, "output_tokens": 1},
    },
    st.lists(BLOCK, max_size=4),
    COUNT,
)
ITEM = st.one_of(
    st.builds(
        lambda t: {
            "type": "message",
            "id": "i",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": t, "annotations": []}],
        },
        WORDS,
    ),
    st.builds(
        lambda n, a: {"type": "function_call", "call_id": "k", "name": n, "arguments": a},
        NAME,
        WORDS,
    ),
    st.builds(lambda t: {"type": "reasoning", "summary": [], "encrypted_content": t}, WORDS),
)
RESPONSES_BODY = st.builds(
    lambda items, status: {"id": "r", "object": "response", "status": status, "output": items},
    st.lists(ITEM, max_size=3),
    st.sampled_from(["completed", "incomplete"]),
)


@given(CHAT_BODY)
def test_a_chat_body_is_its_stream(body: Any) -> None:
    assert folded(CHAT, list(CHAT.explode(body))) == body


@given(MESSAGES_BODY)
def test_a_messages_body_is_its_stream(body: Any) -> None:
    assert folded(MESSAGES, list(MESSAGES.explode(body))) == body


@given(RESPONSES_BODY)
def test_a_responses_body_is_its_stream(body: Any) -> None:
    events = list(RESPONSES.explode(body))
    assert folded(RESPONSES, events) == body
    assert [json.loads(e.data)["sequence_number"] for e in events] == list(range(len(events)))
    # What came before the last event is enough to know the items.
    fold = RESPONSES.fold()
    for event in events[:-1]:
        fold.feed(event)
    assert (fold.body() or {})["output"] == body["output"]


@pytest.mark.parametrize("wire", [CHAT, MESSAGES, RESPONSES], ids=lambda wire: wire.api)
@given(data=st.text(max_size=40) | st.recursive(st.none() | st.text() | COUNT, st.lists).map(str))
def test_nonsense_in_a_stream_is_a_document_error_or_nothing(wire: Wire, data: str) -> None:
    fold = wire.fold()
    try:
        fold.feed(Event(None, data))
        fold.feed(Event(None, json.dumps({"choices": data, "type": data, "delta": [data]})))
    except DocumentError:
        pass
    fold.body()


# --- between wires: streams ------------------------------------------------------------------

PIECES = st.one_of(
    st.builds(TextDelta, WORDS),
    st.builds(ThoughtDelta, WORDS),
    st.tuples(st.builds(CallStart, WORDS, NAME), st.builds(ArgumentsDelta, OBJECT.map(json.dumps))),
)
USAGE = st.builds(
    lambda fresh, cached, out: Usage(
        input_tokens=fresh + cached, output_tokens=out, cached_tokens=cached
    ),
    COUNT,
    COUNT,
    COUNT,
)
DELTAS = st.builds(
    lambda pieces, stop, usage: [
        AnswerStart("x", "m"),
        *[d for piece in pieces for d in (piece if isinstance(piece, tuple) else (piece,))],
        AnswerEnd(stop, usage),
    ],
    st.lists(PIECES, max_size=6),
    st.sampled_from(["end", "tool", "length", "refusal"]),
    USAGE,
)


def merged(deltas: list[Delta]) -> list[Delta]:
    """Return the deltas with neighbours of one kind joined, whatever pieces they came in."""
    kept: list[Delta] = []
    for delta in deltas:
        last = kept[-1] if kept else None
        if isinstance(delta, TextDelta | ThoughtDelta | ArgumentsDelta) and type(last) is type(
            delta
        ):
            kept[-1] = type(delta)(last.text + delta.text)
        else:
            kept.append(delta)
    return kept


@given(DELTAS)
def test_a_chat_stream_has_the_content_of_its_answer(deltas: list[Delta]) -> None:
    writer, reader = ChatWriter(usage=True), ChatReader()
    events = [event for delta in deltas for event in writer.write(delta)]
    read = [delta for event in events for delta in reader.read(event)]
    assert merged(read) == merged(deltas)
    folded(CHAT, events)


@given(DELTAS)
def test_a_messages_stream_has_the_content_of_its_answer(deltas: list[Delta]) -> None:
    writer, reader = MessagesWriter(), MessagesReader()
    events = [event for delta in deltas for event in writer.write(delta)]
    read = [delta for event in events for delta in reader.read(event)]
    assert merged(read) == merged(deltas)
    body = folded(MESSAGES, events)
    assert MESSAGES.usage(body) == deltas[-1].usage


@given(DELTAS)
def test_a_responses_stream_has_the_content_of_its_answer(deltas: list[Delta]) -> None:
    writer = ResponsesWriter([Tool("ask", "", {}, custom=True)])
    body = folded(RESPONSES, [event for delta in deltas for event in writer.write(delta)])
    assert RESPONSES.usage(body) == deltas[-1].usage
    told: list[Delta] = []
    for item in body["output"]:
        if item["type"] == "message":
            told.append(TextDelta(item["content"][0]["text"]))
        elif item["type"] == "reasoning":
            told.append(ThoughtDelta(item["summary"][0]["text"]))
        else:
            told.append(CallStart(item["call_id"], item["name"]))
            told.append(ArgumentsDelta(item["arguments"] if "arguments" in item else item["input"]))
    wanted = list(merged(deltas)[1:-1])
    for index, delta in enumerate(wanted):
        if isinstance(delta, CallStart) and delta.name == "ask":
            wanted[index + 1] = ArgumentsDelta(
                str(json.loads(wanted[index + 1].text).get("input") or "")
            )
    assert [d for d in told if d != ArgumentsDelta("")] == [
        d for d in wanted if d != ArgumentsDelta("")
    ]


# --- between wires: requests -----------------------------------------------------------------


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


IMAGE = st.sampled_from([Image("image/png", "AAAA"), Image(url="https://x/y.png")])
TOOLS = (Tool("write", "Writes.", {"type": "object"}), Tool("read", "", {"type": "object"}))
USER = st.lists(st.builds(Text, WORDS) | IMAGE, min_size=1, max_size=3)
RESULTS = st.lists(
    st.builds(lambda i, t: Result(i, (Text(t),)), WORDS, WORDS), min_size=1, max_size=2
)
ANSWER = st.builds(
    lambda text, uses: (Text(text), *uses),
    WORDS,
    st.lists(st.builds(Use, WORDS, NAME, OBJECT.map(dumped)), max_size=2),
)
TURNS = st.lists(st.tuples(ANSWER, RESULTS, USER), max_size=2).flatmap(
    lambda rounds: USER.map(
        lambda first: (
            Turn("user", tuple(first)),
            *[
                turn
                for answer, results, more in rounds
                for turn in (Turn("assistant", answer), Turn("user", (*results, *more)))
            ],
        )
    )
)
PROMPT = st.builds(
    Prompt,
    model=NAME,
    system=st.just("") | WORDS,
    turns=TURNS,
    tools=st.just(TOOLS),
    choice=st.sampled_from([None, "auto", "any", "none", TOOLS[1]]),
    max_tokens=st.integers(1, 9999),
    temperature=st.none() | st.floats(0, 1),
    top_p=st.none() | st.floats(0, 1),
    stop=st.lists(WORDS, max_size=2).map(tuple),
    stream=st.booleans(),
    usage=st.just(True),
)


@given(PROMPT)
def test_a_prompt_survives_each_wire(prompt: Prompt) -> None:
    chat = write_chat(prompt)
    if prompt.stream:
        chat["stream_options"] = {"include_usage": True}
    assert read_chat(json.loads(json.dumps(chat))) == prompt
    assert read_messages(json.loads(json.dumps(write_messages(prompt)))) == prompt


def test_pictures_of_a_tool_follow_it_where_a_tool_message_holds_text_alone() -> None:
    result = Result("k", (Text("seen"), Image("image/png", "AAAA")))
    written = write_chat(Prompt(model="m", turns=(Turn("user", (result,)),)))
    tool, user = written["messages"]
    assert (tool["role"], tool["content"]) == ("tool", "seen")
    assert user["content"][0]["image_url"]["url"] == "data:image/png;base64,AAAA"


def test_a_custom_tool_is_a_function_with_one_string() -> None:
    request = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "Mind."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"type": "custom_tool_call", "call_id": "k", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "k", "output": "done"},
        ],
        "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"}],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}},
    }
    sent, translation = translate_request(request, RESPONSES, CHAT)
    assert [m["role"] for m in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][0]["content"] == "Be brief.\n\nMind."
    call = sent["messages"][2]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"input": "*** Begin"}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["patch"]
    assert sent["reasoning_effort"] == "low"
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"id": "c", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    (item,) = translation.body(answer)["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")


@pytest.mark.parametrize("namespace", ["agents", "mcp__ask__"])
def test_a_namespace_of_tools_is_part_of_their_names_elsewhere(namespace: str) -> None:
    inner = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
    call = {"type": "function_call", "namespace": namespace, "name": "spawn", "arguments": "{}"}
    request = {
        "model": "m",
        "input": [{**call, "call_id": "k"}],
        "tools": [{"type": "namespace", "name": namespace, "tools": [inner]}],
    }
    sent, translation = translate_request(request, RESPONSES, CHAT)
    whole = f"{namespace.removesuffix('__')}__spawn"
    assert [tool["function"]["name"] for tool in sent["tools"]] == [whole]
    (used,) = sent["messages"][0]["tool_calls"]
    assert used["function"]["name"] == whole
    message = {"role": "assistant", "content": None, "tool_calls": [used]}
    answer = {"id": "c", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    (item,) = translation.body(answer)["output"]
    assert {key: item[key] for key in call} == call


@pytest.mark.parametrize(
    ("front", "back", "request_"),
    [
        (RESPONSES, CHAT, {"previous_response_id": "r"}),
        (RESPONSES, CHAT, {"input": [{"type": "local_shell_call"}]}),
        (RESPONSES, CHAT, {"tools": [{"type": "local_shell"}]}),
        (RESPONSES, CHAT, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
        (MESSAGES, CHAT, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}),
        (CHAT, MESSAGES, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        (CHAT, MESSAGES, {"response_format": {"json_schema": {"schema": {}}}}),
        (
            CHAT,
            MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:x"}}],
                    }
                ]
            },
        ),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else None,
)
def test_what_the_other_wire_cannot_say_is_refused_by_name(
    front: Wire, back: Wire, request_: dict[str, Any]
) -> None:
    with pytest.raises(RefusedError, match="cannot be forwarded") as refused:
        translate_request({"model": "m", **request_}, front, back)
    assert refused.value.status == 400


@given(
    st.dictionaries(
        st.sampled_from(["messages", "tools", "system", "input", "tool_choice", "stop", "text"]),
        st.recursive(
            st.none() | st.booleans() | COUNT | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "type", "text", "function", "tool_calls"]),
                    inner | st.sampled_from(["user", "tool", "text", "function", "tool_result"]),
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
    )
)
def test_a_hostile_request_is_read_or_refused_and_nothing_else(body: dict[str, Any]) -> None:
    for read in (read_chat, read_messages, read_responses):
        try:
            prompt = read(body)
            write_chat(prompt)
            write_messages(prompt)
        except RefusedError:
            pass
