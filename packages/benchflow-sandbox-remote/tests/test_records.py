"""Bytes of a hostile link: every division gives the same records, and nothing grows."""

import asyncio

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_remote.connections import refuse
from benchflow_sandbox_remote.records import (
    MAX_PAYLOAD,
    MAX_RECORD,
    WINDOW,
    Frame,
    FrameKind,
    FrameReader,
    LinkProtocolError,
    Record,
    RecordKind,
    RecordReader,
)
from benchflow_sandbox_remote.session import Session
from benchflow_sandbox_remote.streams import LinkStreams
from benchflow_sandbox_remote.transport import LineTransport
from hypothesis import given
from hypothesis import strategies as st

RECORDS = st.lists(
    st.builds(Record, st.integers(0, 9), st.integers(0, 1 << 60), st.binary(max_size=200)),
    max_size=6,
)
FRAMES = st.lists(
    st.builds(
        Frame,
        st.integers(0, 1 << 31),
        st.integers(0, 20),
        st.integers(0, 9),
        st.binary(max_size=200),
    ),
    max_size=6,
)


def divided(data, cuts):
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    starts, ends = [0, *places], [*places, len(data)]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


CUTS = st.lists(st.integers(0, 5000), max_size=8)


@given(RECORDS, CUTS)
def test_records_are_the_same_however_their_bytes_are_divided(records, cuts):
    reader, found = RecordReader(), []
    for piece in divided(b"".join(record.encode() for record in records), cuts):
        reader.add(piece)
        while (record := reader.take()) is not None:
            found.append(record)
    assert found == records


@given(FRAMES, CUTS)
def test_frames_are_the_same_however_their_bytes_are_divided(frames, cuts):
    reader, found = FrameReader(), []
    for piece in divided(b"".join(frame.encode() for frame in frames), cuts):
        found += reader.feed(piece)
    assert found == frames


def test_a_record_and_a_frame_over_their_limits_are_refused_before_their_bytes_arrive():
    reader = RecordReader()
    reader.add(Record(RecordKind.BYTES, 0, bytes(MAX_RECORD + 1)).encode()[:16])
    with pytest.raises(LinkProtocolError, match="a record has 65537 bytes"):
        reader.take()
    with pytest.raises(LinkProtocolError, match="a frame has 32769 bytes"):
        list(FrameReader().feed(Frame(1, 4, 1, bytes(MAX_PAYLOAD + 1)).encode()[:12]))


class Script:
    """A connection whose other side says what a test wants."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)
        self.written = bytearray()

    async def read(self):
        if not self.pieces:
            await asyncio.Event().wait()
        return self.pieces.pop(0)

    async def write(self, data):
        self.written += data

    async def aclose(self):
        pass


WELCOME = Record(RecordKind.WELCOME, 0).encode()


def ended(*pieces):
    """Return the reason why a session with a link that says this ends."""

    async def main():
        over = asyncio.get_running_loop().create_future()
        transport = Script(WELCOME, *pieces)

        async def dial():
            return transport

        def handle(frame):
            streams.handle(frame)

        session = Session(
            dial,
            bytes(32),
            on_frame=handle,
            on_end=over.set_result,
        )
        streams = LinkStreams(session, refuse)
        with streams.streams():
            await session.start()
            error = await over
        streams.close()
        await session.aclose()
        return error

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record(RecordKind.BYTES, 5, b"x"), "continues at byte 5, after byte 0"),
        (Record(RecordKind.CONFIRM, 1 << 40), "confirms byte 1099511627776, which was never sent"),
        (Record(99, 0), "unknown kind 99"),
        (Record(RecordKind.BYTES, 0, Frame(7, FrameKind.DATA, 1).encode()), "names stream 7"),
        (Record(RecordKind.BYTES, 0, Frame(1, FrameKind.OPEN).encode()), "unexpected frame 1"),
        (Record(RecordKind.BYTES, 0, Frame(1, FrameKind.DATA, 0).encode()), "unexpected frame 4"),
        (
            Record(RecordKind.BYTES, 0, Frame(1, FrameKind.CREDIT, 0, b"\xff" * 4).encode()),
            "more credit than it has",
        ),
        (Record(RecordKind.BYTES, 0, Frame(1, FrameKind.CREDIT, 0, b"x").encode()), "1 bytes"),
    ],
)
def test_a_link_that_breaks_the_protocol_ends_its_session(record, why):
    error = ended(record.encode())
    assert isinstance(error, LinkProtocolError)
    assert error.caused_by == "inside"
    assert why in str(error)


def test_a_link_that_sends_more_than_its_credit_ends_its_session():
    frame = Frame(1, FrameKind.DATA, 1, bytes(MAX_PAYLOAD)).encode()
    data = frame * (WINDOW // MAX_PAYLOAD + 4)
    pieces = [
        Record(RecordKind.BYTES, at, data[at : at + MAX_RECORD]).encode()
        for at in range(0, len(data), MAX_RECORD)
    ]
    assert "more bytes of an output than it may" in str(ended(*pieces))


def test_lines_that_are_not_base64_or_never_end_are_refused():
    async def read(*pieces):
        return await LineTransport(Script(*pieces)).read()

    assert asyncio.run(read(b"YWJj\r\n")) == b"abc"
    assert asyncio.run(read(b"\n", b"YW", b"I=\n")) == b"ab"
    assert asyncio.run(read(b"\n" * 50_000, b"YWI=\n")) == b"ab"
    assert asyncio.run(read(b"YWJ\n", b"")) == b""  # the other side was killed in a line
    for pieces in ([b"a$bc\n"], [b"YWJ\n", b"YWI=\n"], [b"x" * 65536] * 20):
        with pytest.raises(SandboxError):
            asyncio.run(read(*pieces))
