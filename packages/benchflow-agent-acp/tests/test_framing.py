import json

import pytest
from benchflow_agent_acp.framing import parse_message, split_lines
from benchflow_contracts import AgentProtocolError
from hypothesis import given
from hypothesis import strategies as st

LIMIT = 4096
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=4)


@given(st.lists(messages, max_size=6), st.lists(st.integers(1, 50), max_size=40))
def test_any_split_of_the_stream_gives_the_same_messages(sent, cuts):
    stream = b"".join(json.dumps(message).encode() + b"\n" for message in sent)
    buffer, lines, rest = bytearray(), [], stream
    for cut in [*cuts, len(stream) + 1]:
        chunk, rest = rest[:cut], rest[cut:]
        if chunk:
            lines += split_lines(buffer, chunk, limit=1 << 20)
    assert [parse_message(line, max_depth=64) for line in lines] == sent
    assert not buffer


@given(st.lists(st.binary(max_size=200), max_size=60))
def test_the_buffer_never_grows_beyond_the_limit(chunks):
    buffer = bytearray()
    try:
        for chunk in chunks:
            for line in split_lines(buffer, chunk, limit=100):
                assert len(line) <= 100
            assert len(buffer) <= 100
    except AgentProtocolError:
        assert len(buffer) <= 100 + 200


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_a_typed_error_or_parsed(line):
    try:
        parse_message(b"{" + line, max_depth=8)
    except AgentProtocolError:
        return
    json.loads(b"{" + line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b'{"a":' + b"[" * 100_000,
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"\xff"}',
        b'{"a":1',
        b'{"a":"' + b'\\"' * 200_000,
        b"{}{}",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_hostile_json_is_refused(line):
    with pytest.raises(AgentProtocolError):
        parse_message(line, max_depth=64)


def test_brackets_in_strings_do_not_count_as_depth():
    line = json.dumps({"a": "[" * 500 + '"\\"{{{'}).encode()
    assert parse_message(line, max_depth=4)["a"].startswith("[[[")


def test_a_cut_surrogate_becomes_a_question_mark_and_stays_writable():
    parsed = parse_message(b'{"a":"x\\ud83d","b":"\\ud83d\\ude00"}', max_depth=4)
    assert parsed == {"a": "x?", "b": "\U0001f600"}
