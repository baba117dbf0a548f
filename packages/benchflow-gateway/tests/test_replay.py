"""The record of a line, and playing it back."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import CallBudget, Endpoint, ModelCall, StoreError
from benchflow_gateway import CallLog, ReplayDivergedError, read_calls
from benchflow_gateway.digest import asks_for_tools, request_digest
from benchflow_gateway.replay import DivergedError, Replay
from gateway_peers import PATHS, agent_of, ask, hand_written, whole
from hypothesis import given
from hypothesis import strategies as st

APIS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")


def call(number: int, text: str, purpose: str = "main", **fields: Any) -> ModelCall:
    times = {"started_at": number, "finished_at": number + 0.5}
    known = {"status": 200, "response": {"n": number}, **times}
    request = ask("openai-chat", text=text)
    named = f"n.{number:06d}"
    return ModelCall.model_validate(
        {"id": named, "node": "n", "api": "openai-chat", "purpose": purpose, "request": request}
        | known
        | fields
    )


def taken(replay: Replay, text: str) -> int | None:
    found = replay.take("openai-chat", ask("openai-chat", text=text))
    return None if found is None else int((found.response or {})["n"])


# --- replay ----------------------------------------------------------------------------------


def test_a_replay_answers_from_the_record_and_then_goes_live(run, llm) -> None:
    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url)
        parent = await gateway.open("r", "n0", upstream=upstream)
        async with agent_of(parent) as agent:
            told = [
                await agent.post(api, stream=stream, text=f"at {api}")
                for api in APIS
                for stream in (False, True)
            ]
        recorded = parent.calls()
        made = len(llm.requests)
        assert made == 2 * len(APIS)
        budget = CallBudget(calls=1)
        child = await gateway.open("r", "n1", upstream=upstream, replay=recorded, budget=budget)
        async with agent_of(child) as agent:
            # Streamed or not is the agent's choice, also of an answer that was the other.
            again = [
                await agent.post(api, stream=not stream, text=f"at {api}")
                for api in APIS
                for stream in (False, True)
            ]
            assert len(llm.requests) == made
            assert [status for status, _ in again] == [200] * made
            assert json.loads(again[1][1]) == recorded[1].response
            assert json.loads(again[3][1]) == recorded[3].response
            assert again[0][1] != told[0][1]
            status, _ = await agent.post("openai-chat", text="and now something new")
            assert (status, len(llm.requests)) == (200, made + 1)
        calls = child.calls()
        assert [c.replayed for c in calls] == [True] * made + [False]
        assert not any(c.diverged for c in calls)
        assert [c.response for c in calls[:made]] == [c.response for c in recorded]
        assert calls[0].usage == recorded[0].usage
        assert {c.node for c in calls} == {"n1"}

    run(body)


@pytest.mark.parametrize("live", [False, True])
def test_a_replay_that_diverges_is_refused_or_goes_live_and_is_marked(run, llm, live: bool) -> None:
    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url)
        replay = [call(1, "one"), call(2, "two")]
        line = await gateway.open("r", "n", upstream=upstream, replay=replay)
        async with agent_of(line) as agent:
            assert (await agent.post("openai-chat", text="one"))[1] == '{"n":1}'
            url = agent.base + PATHS["openai-chat"]
            async with agent.session.post(url, json=ask("openai-chat", text="else")) as answer:
                assert answer.status == (200 if live else 400)
                if not live:
                    assert answer.headers["x-should-retry"] == "false"
                    assert (await answer.json())["error"]["code"] == "gateway_diverged"
            status, _ = await agent.post("openai-chat", text="two")
            assert status == 200
        assert isinstance(line.error, ReplayDivergedError)
        assert [(c.replayed, c.diverged) for c in line.calls()] == [
            (True, False),
            (False, True),
            (not live, False),
        ]

    run(body, diverged_go_live=live)
    assert len(llm.requests) == (2 if live else 0)


def test_work_comes_in_order_and_what_is_beside_it_at_any_time() -> None:
    calls = [call(1, "title", "aux"), call(2, "one"), call(3, "two"), call(4, "late", "aux")]
    replay = Replay(calls)
    assert taken(replay, "one") == 2
    with pytest.raises(DivergedError):
        taken(replay, "one")
    assert taken(replay, "title") == 1
    assert taken(replay, "two") == 3
    # The last of the work was played: nobody waits for a title that never came.
    assert replay.finished
    assert taken(replay, "late") is None
    toolless = Replay([call(1, "a", "aux"), call(2, "b", "aux")])
    assert [taken(toolless, text) for text in "abc"] == [1, 2, None]


def test_a_request_without_tools_beside_work_with_tools_may_be_new() -> None:
    replay = Replay([call(1, "one")])
    # A resumed agent asks whether its model is there.
    assert replay.take("openai-chat", ask("openai-chat", text="hi", tools=[])) is None
    assert not replay.finished
    with pytest.raises(DivergedError):
        taken(replay, "hi")
    assert taken(replay, "one") == 1


def test_a_record_may_begin_with_what_an_agent_asks_beside_its_next_turn() -> None:
    function = {"id": "c", "function": {"name": "sh", "arguments": "{}"}}
    acts = {"choices": [{"message": {"tool_calls": [function]}}], "n": 2}
    replay = Replay([call(1, "suggest"), call(2, "work", response=acts), call(3, "more")])
    assert replay.unplayed == 3
    # The suggestion did not come this time; it may come late, and the work stays in order.
    assert taken(replay, "work") == 2
    assert replay.unplayed == 1
    assert taken(replay, "suggest") == 1
    assert taken(replay, "more") == 3
    assert replay.finished


def test_a_message_that_says_nothing_is_the_same_with_and_without_content() -> None:
    function = {"id": "c", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [function]}
    asked = {"model": "m", "messages": [{"role": "user", "content": "go"}, message]}
    digest = request_digest("openai-chat", asked)
    for empty in ("", None, []):
        said = {**asked, "messages": [asked["messages"][0], {**message, "content": empty}]}
        assert request_digest("openai-chat", said) == digest
    said = {**asked, "messages": [asked["messages"][0], {**message, "content": "x"}]}
    assert request_digest("openai-chat", said) != digest


def test_calls_that_were_never_answered_are_not_played() -> None:
    failed = call(1, "one", response=None, status=0, error="the agent went away")
    refused = call(2, "one", response={"error": {}}, status=503, error="503: busy")
    assert taken(Replay([failed, refused, call(3, "one")]), "one") == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Today is 2026-11-22.", "Today is 2027-01-01."),
        ("Now: Sun Nov 22 2026", "Now: Mon Jan 1 2027"),
        ("Sun, 22 Nov 2026 05:18:12 GMT", "Mon, 01 Jan 2027 15:00:00 GMT"),
        ("2026-11-22T05:18:12.123Z", "2027-01-01T00:00:00+00:00"),
        ("in /tmp/run-abc/x", "in /tmp/run-xyz/x"),
    ],
)
def test_a_request_is_the_same_at_another_time_and_place(one: str, other: str) -> None:
    digests = {request_digest("a", ask("openai-chat", text=text)) for text in (one, other)}
    assert len(digests) == 1


@given(st.sampled_from(["model", "messages", "tools", "system", "temperature"]))
def test_a_request_is_another_when_anything_that_counts_differs(key: str) -> None:
    body = ask("anthropic-messages")
    assert request_digest("a", body) != request_digest("a", {**body, key: "else"})
    assert request_digest("a", body) != request_digest("b", body)


def test_values_that_an_agent_sets_per_process_are_ignored() -> None:
    body = ask("anthropic-messages", system=[{"type": "text", "text": "Be good."}])
    signed = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f"}
    noisy = {
        **body,
        "system": [signed, *body["system"]],
        "metadata": {"user_id": "u"},
        "stream": True,
        "prompt_cache_key": "k",
    }
    api = "anthropic-messages"
    assert request_digest(api, noisy) == request_digest(api, body)


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "ID-1", "function": {"name": "sh", "arguments": '{"id": "NUMBER-1"}'}},
                {"id": "ID-2", "function": {"name": "sh", "arguments": '{"id": "2"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "ID-1", "content": "SAID"},
        {"role": "tool", "tool_call_id": "ID-2", "content": "other"},
    ],
    "openai-responses": [
        {"type": "message", "id": "ID-9", "role": "user", "content": "Go."},
        {
            "type": "function_call",
            "id": "ID-8",
            "call_id": "ID-1",
            "arguments": '{"id": "NUMBER-1"}',
        },
        {"type": "function_call", "call_id": "ID-2", "arguments": '{"id": "2"}'},
        {"type": "function_call_output", "id": "ID-7", "call_id": "ID-1", "output": "SAID"},
        {"type": "function_call_output", "call_id": "ID-2", "output": "other"},
    ],
    "anthropic-messages": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "ID-1", "input": {"id": "NUMBER-1"}},
                {"type": "tool_use", "id": "ID-2", "input": {"id": "2"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "ID-1", "content": "SAID"},
                {"type": "tool_result", "tool_use_id": "ID-2", "content": "other"},
            ],
        },
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "Go."}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "ID-1", "name": "sh", "args": {"id": "NUMBER-1"}}},
                {"functionCall": {"id": "ID-2", "name": "sh", "args": {"id": "2"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "ID-1", "response": {"output": "SAID"}}},
                {"functionResponse": {"id": "ID-2", "response": {"output": "other"}}},
            ],
        },
    ],
}
TURNS = {"openai-responses": "input", "gemini": "contents"}


def conversation(api: str, **words: str) -> str:
    """Return the digest of a conversation in which some words are others."""
    text = json.dumps(
        {TURNS.get(api, "messages"): CONVERSATIONS[api], "metadata": {"session": "S" * 20}}
    )
    for word, other in words.items():
        assert word.replace("_", "-") in text
        text = text.replace(word.replace("_", "-"), other)
    return request_digest(api, json.loads(text))


@pytest.mark.parametrize("api", APIS)
def test_ids_count_by_which_of_them_are_the_same(api: str) -> None:
    same = conversation(api)
    drawn = "msg_0f8fad5b-d9cb-469f-a165-70867728950e"
    assert conversation(api, ID_1=drawn) == same
    assert conversation(api, ID_1=drawn, ID_2="call_x") == same
    # The two results are of one call now.
    assert conversation(api, ID_1="ID-2") != same
    # An argument of a tool that is called `id` is no id.
    assert conversation(api, NUMBER_1="NUMBER-3") != same


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-11-22", "2026-11-23"),
        ("msg_0f8fad5b-d9cb-469f-a165-70867728950e", "msg_1f8fad5b-d9cb-469f-a165-70867728950e"),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", "1f8fad5b-d9cb-469f-a165-70867728950e"),
        ("/tmp/run-abc", "/tmp/run-xyz"),
        ("1795324692", "1795324693"),
    ],
)
def test_the_output_of_a_tool_must_match_exactly(api: str, one: str, other: str) -> None:
    assert conversation(api, SAID=one) != conversation(api, SAID=other)


@pytest.mark.parametrize("api", APIS)
def test_an_id_that_the_agent_tells_of_itself_is_known_in_every_text(api: str) -> None:
    kept = "S" * 20
    told = [conversation(api, SAID=f"in {kept}/x"), conversation(api, **{kept: "T" * 20}, SAID="")]
    assert told[0] != told[1]
    assert conversation(api, SAID=f"in {kept}/x") == conversation(
        api, SAID=f"in {kept}/x", **{kept: "T" * 20}
    )


def test_varying_fields_in_the_head_of_a_codex_result_are_ignored() -> None:
    head = "Chunk ID: {}\nWall time: {} seconds\nProcess exited with code {}\nOutput:\n{}"

    def digest(*told: object) -> str:
        said = json.dumps(head.format(*told))[1:-1]
        return conversation("openai-responses", SAID=said)

    assert digest("7c3f62", "0.0000", 0, "hello") == digest("f741ce", "1.5", 0, "hello")
    assert digest("7c3f62", "0.0000", 0, "hello") != digest("7c3f62", "0.0000", 1, "hello")
    assert digest("7c3f62", "0.0000", 0, "Wall time: 1") != digest("7", "0", 0, "Wall time: 2")


def test_varying_fields_in_the_foot_of_a_qwen_result_are_ignored() -> None:
    def digest(said: str) -> str:
        return conversation("openai-chat", SAID=json.dumps(said)[1:-1])

    report = "Command: ls\nOutput: {}\nExit Code: 0\nProcess Group PGID: {}"
    assert digest(report.format("a", 90)) == digest(report.format("a", 88))
    assert digest(report.format("a", 90)) != digest(report.format("b", 90))
    assert digest("x\nProcess Group PGID: 1") != digest("x\nProcess Group PGID: 2")


def test_the_time_of_a_tool_in_the_head_of_a_kimi_result_is_ignored() -> None:
    def digest(said: str) -> str:
        return conversation("openai-chat", SAID=json.dumps(said)[1:-1])

    assert digest("Wall time: 0.220 seconds\nblue") == digest("Wall time: 11.167 seconds\nblue")
    assert digest("Wall time: 0.220 seconds\nblue") != digest("Wall time: 0.220 seconds\nred")
    assert digest("I\nWall time: 0.220 seconds\n") != digest("I\nWall time: 0.221 seconds\n")


def test_what_an_agent_asks_beside_its_ended_turn_comes_by_chance() -> None:
    function = {"id": "c", "function": {"name": "sh", "arguments": "{}"}}
    calls = {"choices": [{"message": {"tool_calls": [function]}}]}
    record = [
        call(1, "one", response={**calls, "n": 1}),
        call(2, "two"),
        call(3, "remember", response={**calls, "n": 3}, request=other_tools("remember")),
        call(4, "suggest"),
        call(5, "next turn", response={**calls, "n": 5}),
        call(6, "end"),
    ]
    replay = Replay(record)
    with pytest.raises(DivergedError):
        taken(replay, "two")
    assert [taken(replay, text) for text in ("one", "two", "suggest", "next turn")] == [1, 2, 4, 5]
    found = replay.take("openai-chat", other_tools("remember"))
    assert found is record[2]
    assert replay.unplayed == 1
    assert taken(replay, "end") == 6
    assert replay.finished


def other_tools(text: str) -> dict[str, Any]:
    return ask("openai-chat", text=text, tools=[{"type": "function"}])


def test_calls_that_ran_at_the_same_time_are_replayed_in_either_order() -> None:
    one, two = call(1, "one"), call(2, "two", started_at=1.2)
    replay = Replay([one, two])
    assert [taken(replay, text) for text in ("two", "one")] == [2, 1]
    assert replay.finished


def test_a_recorded_call_of_a_tool_is_known_in_each_wire() -> None:
    called = {
        "openai-chat": {"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]},
        "openai-responses": {"output": [{"type": "function_call"}]},
        "anthropic-messages": {"content": [{"type": "tool_use"}]},
        "gemini": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "sh"}}]}}]},
    }
    assert [api for api in APIS if asks_for_tools(called[api])] == list(APIS)
    assert not asks_for_tools({"candidates": [{"content": {"parts": [{"text": "Done."}]}}]})


def test_calls_are_unplayed_until_an_answer_that_calls_no_tool() -> None:
    function = {"id": "c", "function": {"name": "sh", "arguments": "{}"}}
    calls = {"choices": [{"message": {"tool_calls": [function]}}], "n": 1}
    replay = Replay([call(1, "one", response=calls), call(2, "two"), call(3, "beside")])
    assert replay.unplayed == 3
    taken(replay, "one")
    assert replay.unplayed == 2
    taken(replay, "two")
    assert replay.unplayed == 0


# --- the record ------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(1, 3))
def test_an_incomplete_last_line_is_removed_and_the_rest_is_read(
    tmp_path_factory, cut: int, n: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "deep" / "n.jsonl"
    log = CallLog.open(path)
    for number in range(1, n + 1):
        log.append(call(number, "x"))
    log.close()
    log.close()
    last = len(path.read_bytes().splitlines(keepends=True)[-1])
    torn = min(cut, last)
    os.truncate(path, path.stat().st_size - torn)
    kept = n - (torn > 0)
    assert len(read_calls(path)) == kept
    log = CallLog.open(path)
    assert log.count == kept
    log.append(call(9, "after"))
    assert [c.id for c in log.read()][-1] == "n.000009"
    assert len(log.read()) == kept + 1
    log.close()
    with pytest.raises(StoreError):
        log.append(call(1, "x"))


def test_a_line_goes_on_with_its_record_and_its_budget(run, llm, tmp_path: Path) -> None:
    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url)
        line = await gateway.open("r", "n", upstream=upstream)
        async with agent_of(line) as agent:
            await agent.json("openai-chat")
            await agent.json("openai-chat", tools=[])
        await line.aclose()
        budget = CallBudget(calls=3)
        line = await gateway.open("r", "n", upstream=upstream, budget=budget)
        async with agent_of(line) as agent:
            await agent.json("openai-chat", tools=[])
            assert (await agent.post("openai-chat"))[0] == 429
        assert [c.id for c in line.calls()] == [f"n.{n:06d}" for n in (1, 2, 3, 4)]
        assert [c.purpose for c in line.calls()] == ["main", "aux", "aux", "main"]

    run(body)
    record = tmp_path / "record" / "r" / "n.jsonl"
    assert len(read_calls(record)) == 4
    assert record.stat().st_mode & 0o077 == 0


def test_a_call_that_cannot_be_recorded_is_not_answered(run, llm, monkeypatch) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        real = os.write

        def full(descriptor: int, data: Any) -> int:
            if len(data) > 200:
                return real(descriptor, data[:100])
            raise OSError(28, "No space left on device")

        async with agent_of(line) as agent:
            await agent.json("openai-chat")
            monkeypatch.setattr(os, "write", full)
            status, text = await agent.post("openai-chat")
            streamed = await agent.post("openai-chat", stream=True)
            monkeypatch.undo()
            assert status == 500
            assert "No space" in text
            assert "error" in streamed[1]
            assert "[DONE]" not in streamed[1]
            await agent.json("openai-chat")
        assert len(line.calls()) == 2

    run(body)


def test_concurrent_calls_are_each_recorded_once_in_the_order_they_began(run) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Any) -> None:
            text = taken.body["messages"][0]["content"]
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await taken.write(whole({"choices": [choice]}))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent, asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(agent.json("openai-chat", text=str(n))) for n in range(50)
                ]
            answers = [task.result()["choices"][0]["message"]["content"] for task in tasks]
            assert answers == [str(n) for n in range(50)]
            calls = line.calls()
            assert [c.id for c in calls] == [f"n.{n:06d}" for n in range(1, 51)]
            for recorded in calls:
                asked = recorded.request["messages"][0]["content"]
                assert (recorded.response or {})["choices"][0]["message"]["content"] == asked

    run(body)
