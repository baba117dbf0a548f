"""Event streams in every spelling, cut anywhere."""

import itertools

import pytest
from benchflow_gateway.sse import Event, Frame, SseError, SseReader
from hypothesis import given
from hypothesis import strategies as st

LINE = st.sampled_from(["", "a", " b", "data: c", ":", "é: \u2028", "x" * 200])
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from([None, "message", "response.created"]),
        st.lists(LINE, min_size=1, max_size=3).map("\n".join),
    ),
    max_size=5,
)


def read(pieces: list[bytes]) -> list[Frame]:
    reader = SseReader(1 << 20)
    frames = [frame for piece in pieces for frame in reader.feed(piece)]
    return [*frames, *reader.finish()]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({min(i, len(data)) for i in at} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@given(EVENTS, st.lists(st.integers(0, 300)), st.sampled_from(["\n", "\r\n"]))
def test_what_was_written_is_read_however_it_is_cut(
    events: list[Event], at: list[int], end: str
) -> None:
    data = b"".join(event.encode() for event in events).replace(b"\n", end.encode())
    frames = read(cut(data, at))
    assert [frame.event for frame in frames if frame.event is not None] == events
    assert b"".join(frame.raw for frame in frames) == data


@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\r", b"\r\n", b":c", b"event: e", b"x"])))
def test_no_stream_loses_a_byte(pieces: list[bytes]) -> None:
    assert b"".join(frame.raw for frame in read(pieces)) == b"".join(pieces)


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        (b"data:no space\n\n", Event(None, "no space")),
        (b"data:  two\n\n", Event(None, " two")),
        (b"data\n\n", Event(None, "")),
        (b": ping\n\n", None),
        (b"event: only\n\n", None),
        (b"\xef\xbb\xbfdata: bom\n\n", Event(None, "bom")),
        (b"id: 1\nretry: 5\nevent: e\ndata: a\ndata: b\n\n", Event("e", "a\nb")),
        ("data: \u2028 is no line end\n\n".encode(), Event(None, "\u2028 is no line end")),
    ],
)
def test_fields_are_read_as_in_the_standard(raw: bytes, event: Event | None) -> None:
    assert [frame.event for frame in read([raw])] == [event]


def test_a_stream_without_an_end_or_of_another_encoding_is_refused() -> None:
    with pytest.raises(SseError, match="more than"):
        list(SseReader(100).feed(b"data: " + b"x" * 200))
    with pytest.raises(SseError, match="UTF-8"):
        read([b"data: \xff\n\n"])
