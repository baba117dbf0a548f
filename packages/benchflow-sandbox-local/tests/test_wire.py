"""Messages with descriptors between the runner and its launcher."""

import os
import resource
import socket
import subprocess
import sys

import pytest
from benchflow_sandbox_local.launcher_process import wire


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pipes():
    made = [end for _ in range(300) for end in os.pipe()]
    yield tuple(made)
    wire.close(made)


def test_a_program_that_is_started_inherits_no_received_descriptor(pair, pipes):
    ours, theirs = pair
    wire.send_more(ours, pipes)
    wire.send(ours, {}, pipes[:2])
    received = wire.receive_more(theirs, len(pipes))
    _, more = wire.receive(theirs)
    received += more
    program = [sys.executable, "-ISc", "import os; print(*os.listdir('/proc/self/fd'))"]
    done = subprocess.run(program, close_fds=False, capture_output=True, text=True, check=True)
    assert not {str(fd) for fd in received} & set(done.stdout.split())
    wire.close(received)


def test_more_descriptors_than_one_message_takes_come_in_their_order(pair, pipes):
    ours, theirs = pair
    wire.send_more(ours, pipes)
    received = wire.receive_more(theirs, len(pipes))
    assert [os.fstat(fd).st_ino for fd in received] == [os.fstat(fd).st_ino for fd in pipes]
    wire.close(received)
    with pytest.raises(BlockingIOError):
        wire.receive_more(theirs, 1)


def test_descriptors_that_find_no_room_are_an_error_and_not_the_end(pair, pipes):
    ours, theirs = pair
    wire.send(ours, {}, pipes[:20])
    wire.send_more(ours, pipes[:20])
    wire.send(ours, {"still": "there"})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(pipes) + 10, limits[1]))
    try:
        with pytest.raises(wire.NoRoomError, match="Too many open files") as caught:
            wire.receive(theirs)
        wire.close(caught.value.fds)
        with pytest.raises(wire.NoRoomError):
            wire.receive_more(theirs, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert wire.receive(theirs) == ({"still": "there"}, [])
