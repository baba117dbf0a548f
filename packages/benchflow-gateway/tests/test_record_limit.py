"""A rollout's record of calls takes no more of the disk than it may."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import AgentError, Endpoint
from benchflow_gateway import Limits, RecordLimitError, read_calls
from gateway_peers import PATHS, Taken, agent_of, ask, hand_written, whole

MOST = 100_000


def size_of(record: Path) -> int:
    return sum(path.stat().st_size for path in record.rglob("*.jsonl"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
def test_calls_beyond_the_limit_are_refused_and_counted_by_a_stub(
    run, llm, tmp_path: Path, api: str, stream: bool
) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        told: list[Exception] = []
        line.watch(told.append)
        reported: list[str] = []
        line.on_call(lambda call: reported.append(call.id))
        async with agent_of(line) as agent:
            statuses = []
            for _ in range(12):
                url = agent.base + PATHS[api]
                request = ask(api, stream=stream, text="x" * 15_000)
                async with agent.session.post(url, json=request) as answer:
                    statuses.append(answer.status)
                    if answer.status != 200:
                        assert answer.headers["x-should-retry"] == "false"
                        assert "of at most 100000 bytes" in await answer.text()
        answered = statuses.index(429)
        assert 3 <= answered <= 6
        assert statuses == [200] * answered + [429] * (12 - answered)
        assert told == [line.error]
        assert isinstance(line.error, RecordLimitError)
        assert isinstance(line.error, AgentError)
        assert reported == [call.id for call in line.outline()]
        *before, stub = line.calls()
        assert len(before) == answered
        assert (stub.request, stub.response, stub.status) == ({}, None, 429)
        assert str(stub.error).startswith("record_limit: cannot record a call of ")

    run(body, limits=Limits(record_bytes=MOST))
    assert size_of(tmp_path / "record") < MOST + 2000
    # What could not be recorded was asked for once at most, and then no more.
    assert len(llm.requests) <= len(read_calls(tmp_path / "record" / "r" / "n.jsonl"))


def test_an_answer_that_does_not_fit_is_not_given(run, tmp_path: Path) -> None:
    async def body(gateway: Any) -> None:
        async def behave(taken: Taken) -> None:
            message = {"role": "assistant", "content": "y" * MOST}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 2}
            await taken.write(whole({"choices": [choice], "usage": usage}))

        async with hand_written(behave) as upstream:
            line = await gateway.open("r", "n", upstream=upstream)
            async with agent_of(line) as agent:
                status, text = await agent.post("openai-chat")
                assert (status, "yyy" in text) == (429, False)
            (stub,) = line.calls()
            assert stub.usage.output_tokens == 2

    run(body, limits=Limits(record_bytes=MOST))
    assert size_of(tmp_path / "record") < 2000


def test_the_lines_of_a_rollout_share_its_space_and_other_rollouts_have_their_own(
    run, llm, tmp_path: Path
) -> None:
    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url)

        async def said(rollout: str, node: str) -> list[int]:
            line = await gateway.open(rollout, node, upstream=upstream)
            async with agent_of(line) as agent:
                posts = [await agent.post("openai-chat", text="x" * 30_000) for _ in range(2)]
            await line.aclose()
            return [status for status, _ in posts]

        assert await said("r", "n0") == [200, 200]
        assert await said("r", "n1") == [200, 429]
        # What is on the disk counts when a line is opened again, and once.
        assert await said("r", "n0") == [429, 429]
        assert await said("other", "n0") == [200, 200]

    run(body, limits=Limits(record_bytes=MOST))
    assert size_of(tmp_path / "record" / "r") < MOST + 4000


def test_calls_at_the_same_time_stay_within_the_limit(run, llm, tmp_path: Path) -> None:
    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent, asyncio.TaskGroup() as group:
            posts = [
                group.create_task(agent.post("openai-chat", text="x" * 20_000)) for _ in range(20)
            ]
        statuses = [post.result()[0] for post in posts]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) <= 4

    run(body, limits=Limits(record_bytes=MOST))
    assert size_of(tmp_path / "record") < MOST + 20 * 1000


def test_a_request_is_recorded_as_it_came_in_one_line(run, llm, tmp_path: Path) -> None:
    request = ask("openai-chat", text="a\nb \u2028 \U0001f680 \u0001")
    text = json.dumps(request, indent=2).replace("\n", "\r\n")

    async def body(gateway: Any) -> None:
        line = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        async with agent_of(line) as agent:
            url = agent.base + PATHS["openai-chat"]
            async with agent.session.post(url, data=text) as answer:
                assert answer.status == 200
        (call,) = line.calls()
        assert call.request == request

    run(body)
    assert (tmp_path / "record" / "r" / "n.jsonl").read_bytes().count(b"\n") == 1
