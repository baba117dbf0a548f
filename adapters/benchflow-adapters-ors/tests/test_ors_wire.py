"""The messages and event streams of the Open Reward Standard."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence

import httpx
import pytest
from benchflow_adapters_ors import OrsError, OrsProtocolError
from benchflow_adapters_ors.sse import ResultReader, encode_error, encode_event, encode_result
from benchflow_adapters_ors.wire import (
    CallResult,
    CreateRequest,
    TextBlock,
    ToolFailure,
    ToolOutput,
    ToolSuccess,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

RESULT: TypeAdapter[ToolSuccess | ToolFailure] = TypeAdapter(CallResult)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=80) | st.text(' \n\\"\u00a0\u2028\x85ab')


class Parts(httpx.AsyncByteStream):
    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


def read(parts: Sequence[bytes], reader: ResultReader | None = None) -> str | None:
    headers = {"Content-Type": "text/event-stream; charset=utf-16"}
    response = httpx.Response(200, headers=headers, stream=Parts(parts))
    return asyncio.run((reader or ResultReader()).read(response))


def split(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


def success(text: str) -> ToolSuccess:
    return ToolSuccess(output=ToolOutput(blocks=(TextBlock(text=text),), reward=0.5))


@given(TEXTS, st.integers(1, 40), st.lists(st.integers(0, 10**6), max_size=30))
def test_a_result_is_read_whole_at_any_boundary(text: str, size: int, cuts: list[int]) -> None:
    stream = b"".join(encode_result(success(text), size))
    found = read(list(split(stream, cuts)))
    assert found is not None
    assert RESULT.validate_json(found) == success(text)


@given(TEXTS, st.integers(1, 40))
def test_a_client_that_strips_white_space_loses_nothing_of_our_stream(text: str, size: int) -> None:
    stream = b"".join(encode_result(success(text), size)).decode()
    lines = [line for line in stream.split("\r\n") if line.startswith("data:")]
    joined = "".join(line.removeprefix("data:").lstrip() for line in lines)
    assert json.loads(joined)["output"]["blocks"][0]["text"] == text


@given(TEXTS, st.integers(1, 40), st.lists(st.integers(0, 10**6), max_size=30))
def test_we_lose_nothing_of_a_stream_whose_chunks_begin_with_a_space(
    text: str, size: int, cuts: list[int]
) -> None:
    whole = success(text).model_dump_json()
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    names = ["chunk"] * (len(chunks) - 1) + ["end"]
    stream = b"".join(map(encode_event, names, chunks))
    assert read(list(split(stream, cuts))) == whole


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_a_result_or_an_orderly_error(parts: list[bytes]) -> None:
    try:
        found = read(parts)
    except OrsError:
        return
    assert found is None or isinstance(found, str)


def test_a_second_stream_begins_the_result_again() -> None:
    reader = ResultReader()
    first = encode_event("task_id", "t1") + encode_event("chunk", '{"ok"')
    assert read([first], reader) is None
    assert reader.task_id == "t1"
    assert read(list(encode_result(success("x"))), reader) == success("x").model_dump_json()


def test_a_failed_tool_is_an_error_with_its_message() -> None:
    with pytest.raises(OrsError, match="no such file\nsecond line"):
        read([encode_error("no such file\nsecond line")])


def test_a_result_that_is_too_long_is_refused_before_its_line_ends() -> None:
    with pytest.raises(OrsProtocolError, match="longer than 1000 bytes"):
        read([b"data: "] + [b"x" * 100] * 50, ResultReader(max_bytes=1000))


def test_an_answer_that_is_not_a_stream_is_refused() -> None:
    response = httpx.Response(200, headers={"Content-Type": "application/json"}, content=b"{}")
    with pytest.raises(OrsProtocolError, match="events"):
        asyncio.run(ResultReader().read(response))


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e999", '"1"', "true"])
def test_a_reward_that_is_not_a_finite_number_is_refused(reward: str) -> None:
    with pytest.raises(ValidationError, match="reward"):
        RESULT.validate_json(f'{{"ok":true,"output":{{"blocks":[],"reward":{reward}}}}}')


def test_a_missing_reward_is_not_zero() -> None:
    answer = RESULT.validate_json('{"ok":true,"output":{"blocks":[],"new_key":1}}')
    assert isinstance(answer, ToolSuccess)
    assert answer.output.reward is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"split": "train"},
        {"index": 0},
        {"task_spec": {}, "split": "train", "index": 0},
        {"task_spec": {}, "index": 0},
        {"task_spec": {}, "unknown": 1},
    ],
)
def test_a_session_has_exactly_one_source_of_its_task(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CreateRequest.model_validate(body)


def test_secrets_are_not_in_a_repr() -> None:
    request = CreateRequest(task_spec={}, secrets={"KEY": "hunter2"})
    assert "hunter2" not in repr(request)
