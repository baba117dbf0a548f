"""A session whose connection is cut: at every byte, and for a time, by the clock of the test."""

import asyncio

import pytest
from benchflow_contracts.errors import CredentialsError, SandboxError, SandboxLostError
from benchflow_sandbox_remote.session import Session
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import CutTransport, ScriptedLink, data_frames, run_virtual

TOKEN = bytes(range(32))
UP, DOWN = data_frames(6, end=0), data_frames(9)


class Network:
    """Opens connections to a link. `plan` has the limits of the first ones."""

    def __init__(self, link, plan=()):
        self.link = link
        self.plan = list(plan)
        self.opened = []
        self.refusal = None
        self.is_silent = False

    async def dial(self):
        if self.refusal is not None:
            raise self.refusal
        limits = self.plan.pop(0) if self.plan else (None, None)
        transport = CutTransport(self.link, *limits)
        transport.is_silent = self.is_silent
        self.opened.append(transport)
        return transport

    def go_away(self, error):
        self.refusal = error
        for transport in self.opened:
            transport.cut()

    def swallow(self, *, everything):
        """Carry no byte, and report nothing: the cable is pulled."""
        self.is_silent = everything
        for transport in self.opened:
            transport.is_silent = everything


async def exchange(network, up=UP, **options):
    """Send `up` through a session; return the frames from the link when all have arrived."""
    loop = asyncio.get_running_loop()
    link, got, ended, whole = network.link, [], loop.create_future(), asyncio.Event()

    def receive(frame):
        got.append(frame)
        if len(got) >= len(link.frames):
            whole.set()

    session = Session(network.dial, TOKEN, on_frame=receive, on_end=ended.set_result, **options)
    while session._task is None:
        try:
            await session.start()
        except SandboxError:
            continue  # the first connection was cut: only a later one is made again by itself
    for frame in up:
        session.send(frame)
    for arrival in (link.holds(up), whole.wait()):
        await asyncio.wait([ended, loop.create_task(arrival)], return_when="FIRST_COMPLETED")
    assert not ended.done(), ended.result()
    await session.aclose()
    return got


def carried_whole():
    """Return the bytes that a connection without a cut carries, up and down."""

    async def main(loop):
        del loop
        network = Network(ScriptedLink(DOWN))
        await exchange(network)
        return network.opened[0].carried

    return run_virtual(main)


def check(plan):
    """Exchange frames over connections with these limits: each frame arrives once, in order."""

    async def main(loop):
        del loop
        network = Network(ScriptedLink(DOWN), plan)
        assert await exchange(network) == DOWN
        assert bytes(network.link.input) == b"".join(frame.encode() for frame in UP)
        assert set(network.link.tokens) == {TOKEN}
        return len(network.opened)

    return run_virtual(main)


@pytest.mark.parametrize("way", [0, 1], ids=["to the sandbox", "from the sandbox"])
def test_a_cut_at_any_byte_loses_and_repeats_no_frame(way):
    size = carried_whole()[way]
    assert size > 150
    cuts = 0
    for at in range(size):
        limits = (at, None) if way == 0 else (None, at)
        cuts += check([limits, (None, None)]) - 1
    assert cuts >= size - 40  # nobody waits for the last confirmations


LIMITS = st.tuples(*[st.one_of(st.none(), st.integers(0, 600))] * 2)


@given(st.lists(LIMITS, max_size=8))
def test_many_cuts_in_both_directions_lose_and_repeat_no_frame(plan):
    check(plan)


def absence(seconds, *, silent=False, **options):
    """Let the network go away for some time in an exchange; return the error or the frames."""

    async def main(loop):
        link = ScriptedLink()
        network, got, ended = Network(link), [], loop.create_future()
        session = Session(
            network.dial, TOKEN, on_frame=got.append, on_end=ended.set_result, **options
        )
        await session.start()
        for frame in UP[:3]:
            session.send(frame)
        await asyncio.sleep(1)
        if silent:
            network.swallow(everything=True)
        else:
            network.go_away(SandboxError("the network is away"))
        for frame in UP[3:]:
            session.send(frame)
        began = loop.time()
        await asyncio.wait([ended], timeout=seconds)
        if ended.done():
            return ended.result(), loop.time() - began
        network.refusal = None
        network.swallow(everything=False)
        await asyncio.wait([ended, loop.create_task(link.holds(UP))], return_when="FIRST_COMPLETED")
        if ended.done():
            return ended.result(), loop.time() - began
        await session.aclose()
        assert bytes(link.input) == b"".join(frame.encode() for frame in UP)
        return None, loop.time() - began

    return run_virtual(main)


@pytest.mark.parametrize("seconds", [1, 30, 60, 110])
def test_a_session_survives_a_network_that_is_away_for_less_than_its_limit(seconds):
    error, took = absence(seconds)
    assert error is None
    assert took <= seconds + 6  # the longest pause between two tries


@pytest.mark.parametrize("seconds", [60, 90])
def test_a_session_survives_a_network_that_swallows_everything(seconds):
    error, took = absence(seconds, silent=True)
    assert error is None
    assert took <= seconds + 30


@pytest.mark.parametrize("limit", [60, 90, 120])
def test_a_network_that_is_away_for_longer_is_a_typed_error_at_the_limit(limit):
    error, took = absence(600, lost_after=limit)
    assert isinstance(error, SandboxLostError)
    assert f"could not be reached for {limit} s: the network is away" in str(error)
    assert limit <= took <= limit + 1


def test_a_network_that_swallows_everything_is_noticed_by_its_silence():
    error, took = absence(600, silent=True, lost_after=60)
    assert isinstance(error, SandboxLostError)
    # 25 s without a byte, and then the limit.
    assert 60 <= took <= 60 + 25 + 1


def test_credentials_that_expired_end_the_session_at_once_and_say_so():
    async def main(loop):
        network, ended = Network(ScriptedLink()), loop.create_future()
        session = Session(network.dial, TOKEN, on_frame=print, on_end=ended.set_result)
        await session.start()
        network.go_away(CredentialsError("the token has expired"))
        error = await ended
        return error, loop.time()

    error, now = run_virtual(main)
    assert isinstance(error, CredentialsError)
    assert now < 5
