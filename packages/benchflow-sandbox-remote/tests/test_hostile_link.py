"""A link that root inside has replaced: it lies, floods, and does not answer."""

import asyncio
import itertools

import pytest
from benchflow_contracts.errors import SandboxError, SandboxLostError
from benchflow_sandbox_remote import running_box, session
from benchflow_sandbox_remote.records import (
    FIRST_ACCEPTED,
    MAX_ACCEPTED,
    MAX_PAYLOAD,
    MAX_RECORD,
    Frame,
    FrameKind,
    LinkProtocolError,
    Record,
    RecordKind,
    credit,
)
from benchflow_sandbox_remote.running_box import RemoteBox
from benchflow_sandbox_remote.session import Session
from hypothesis import given
from hypothesis import strategies as st

TOKEN = bytes(32)
WELCOME = Record(RecordKind.WELCOME, 0).encode()


class Link:
    """A connection whose other side says some bytes. It then ends, or says nothing more."""

    def __init__(self, data, *, ends=False):
        self.pieces = [data[at : at + MAX_RECORD] for at in range(0, len(data), MAX_RECORD)]
        self.ends = ends

    async def read(self):
        if self.pieces:
            return self.pieces.pop(0)
        if not self.ends:
            await asyncio.Event().wait()
        return b""

    async def write(self, data):
        del data

    async def aclose(self):
        pass


def frames(*every):
    """Return the frames as the records of a connection."""
    data = b"".join(frame.encode() for frame in every)
    pieces = range(0, len(data), MAX_RECORD)
    return b"".join(
        Record(RecordKind.BYTES, at, data[at : at + MAX_RECORD]).encode() for at in pieces
    )


def with_box(test, *said, ends=False):
    """Run a test against the sandbox of a link that says these bytes after its welcome.

    The test gets the sandbox, and a function that waits for the end of its session.
    """

    async def main():
        links = [Link(WELCOME + b"".join(said), ends=ends)]

        async def dial():
            if not links:
                raise SandboxLostError("the sandbox is gone")
            return links.pop()

        box = RemoteBox(dial, TOKEN, lost_after=0.1)
        over, on_end = asyncio.Event(), box.session._on_end

        def end(error):
            on_end(error)
            over.set()

        async def error_of_end():
            await over.wait()
            return box.session.error

        box.session._on_end = end
        try:
            return await test(box, error_of_end)
        finally:
            await box.aclose()

    return asyncio.run(main())


async def outcome(box, kind):
    """Give an order, then start the session; return the error of the order, if there is one."""

    async def give():
        try:
            await box.order(kind)
        except SandboxError as error:
            return error

    async with asyncio.TaskGroup() as group:
        order = group.create_task(give())
        await box.session.start()
    return order.result()


def test_a_link_that_never_answers_an_order_does_not_hold_up_the_runner(monkeypatch):
    monkeypatch.setattr(running_box, "_READY_SECONDS", 0.1)

    async def test(box, _error):
        await box.session.start()
        with pytest.raises(LinkProtocolError, match="did not answer an order to freeze") as error:
            await box.order(FrameKind.FREEZE)
        assert error.value.caused_by == "inside"
        assert box.closed  # a late answer cannot count for a later order
        with pytest.raises(LinkProtocolError):
            await box.order(FrameKind.KILL)

    with_box(test)


def test_an_answer_twice_and_an_error_that_does_not_exist_are_errors_of_the_sandbox():
    def answer(code):
        return Frame(0, FrameKind.ANSWER, 0, code.to_bytes(4, "little"))

    async def unknown(box, _error):
        with pytest.raises(SandboxError, match="unknown error 4294967295"):
            raise await outcome(box, FrameKind.KILL)

    with_box(unknown, frames(answer(0xFFFFFFFF)))

    async def twice(box, error):
        assert await outcome(box, FrameKind.KILL) is None
        assert "an order that it did not get" in str(await error())

    with_box(twice, frames(answer(0), answer(0)))


def test_a_link_that_confirms_nothing_cannot_use_up_the_memory(monkeypatch):
    monkeypatch.setattr(session, "_MOST_UNCONFIRMED", 1 << 8)
    # An output that nobody reads is answered by frames of credit.
    flood = itertools.repeat(Frame(1, FrameKind.DATA, 1, bytes(MAX_PAYLOAD)), 1 << 6)

    async def test(box, error):
        with box.streams() as streams:
            streams.stdout.close()
            await box.session.start()
            with pytest.raises(LinkProtocolError, match="did not confirm"):
                raise await error()

    with_box(test, frames(*flood))


def test_a_defect_of_the_runner_ends_the_session_and_every_caller_with_it():
    async def main():
        over = asyncio.get_running_loop().create_future()

        async def dial():
            return Link(WELCOME + frames(Frame(1, FrameKind.DATA)))

        def handle(frame):
            raise KeyError(frame.stream)

        broken = Session(dial, TOKEN, on_frame=handle, on_end=over.set_result)
        await broken.start()
        assert "KeyError(1)" in str(await over)
        with pytest.raises(KeyError):
            await broken._task

    asyncio.run(main())


def accepted(number):
    """Return the frame that reports a connection."""
    return Frame(FIRST_ACCEPTED + number, FrameKind.ACCEPTED)


DATA = Frame(FIRST_ACCEPTED, FrameKind.DATA, 1, bytes(MAX_PAYLOAD))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([accepted(1)], "may not accept"),
        ([accepted(0), accepted(0)], "may not accept"),
        ([accepted(number) for number in range(MAX_ACCEPTED + 1)], "may not accept"),
        ([DATA], "which is not open"),
        ([accepted(0), *[DATA] * 13], "more bytes of a connection"),
        ([accepted(0), Frame(FIRST_ACCEPTED, FrameKind.END, 1), DATA], "unexpected frame"),
        ([accepted(0), credit(FIRST_ACCEPTED, 0, 1)], "more credit"),
    ],
)
def test_a_connection_that_the_link_may_not_report_ends_the_session(said, message):
    connections = []

    async def test(box, error):
        box.on_accepted = lambda *each: connections.append(each)
        await box.session.start()
        with pytest.raises(LinkProtocolError, match=message):
            raise await error()
        for _, writer, _ in connections:
            with pytest.raises(OSError, match="ended"):
                await writer.wait_closed()

    with_box(test, frames(*said))


ANY_FRAMES = st.lists(
    st.builds(
        Frame,
        st.integers(0, 3) | st.sampled_from([FIRST_ACCEPTED, FIRST_ACCEPTED + 1]),
        st.integers(0, 15) | st.just(FrameKind.ACCEPTED),
        st.integers(0, 4),
        st.binary(max_size=4) | st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "little")),
    ),
    max_size=8,
)
ANY_RECORDS = st.lists(
    st.builds(Record, st.integers(0, 7), st.integers(0, 40), st.binary(max_size=40)), max_size=5
)


@given(ANY_FRAMES, ANY_RECORDS, st.binary(max_size=60))
def test_whatever_a_link_says_the_session_ends_with_an_error_of_the_sandbox(
    every, records, garbage
):
    said = frames(*every) + b"".join(record.encode() for record in records) + garbage

    connections = []

    async def test(box, error):
        box.on_accepted = lambda *each: connections.append(each)
        with box.streams():
            order = await outcome(box, FrameKind.THAW)
            assert order is None or isinstance(order, SandboxError)
            assert isinstance(await error(), SandboxError)

    with_box(test, said, ends=True)
