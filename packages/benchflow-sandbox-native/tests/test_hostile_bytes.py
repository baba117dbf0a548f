import array
import asyncio
import socket
import struct
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SPAWN = struct.pack("=IIIIIIII", 0, 0, 0o22, 0, 1, 1, 1, 1)
SPAWN += struct.pack("=IIQQ", 7, 4, 0, 0) + b"/\0/bin/true\0A=B\0"

numbers = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 2**16, 2**20, 2**31]))
words = st.lists(numbers, max_size=12).map(lambda many: struct.pack(f"={len(many)}I", *many))
bodies = st.one_of(st.binary(max_size=300), words, st.tuples(words, st.binary()).map(b"".join))
framed = st.tuples(st.integers(0, 7), bodies).map(
    lambda pair: struct.pack("=II", pair[0], len(pair[1])) + pair[1]
)
lying = st.tuples(st.integers(0, 7), numbers, bodies).map(
    lambda parts: struct.pack("=II", *parts[:2]) + parts[2]
)


@st.composite
def damaged_spawns(draw):
    body = bytearray(SPAWN)
    for _ in range(draw(st.integers(1, 4))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    cut = bytes(body[: draw(st.integers(0, len(body)))]) + draw(st.binary(max_size=8))
    return struct.pack("=II", 2, len(cut)) + cut


messages = st.one_of(st.binary(max_size=64), framed, lying, damaged_spawns())
fuzz = settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def throw(box, data, fd_count, pieces):
    with box.connect() as raw:
        rights = array.array("i", [box.null] * fd_count)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fd_count else []
        try:
            for start in range(0, len(data), max(1, len(data) // pieces)):
                end = start + max(1, len(data) // pieces)
                raw.sendmsg([data[start:end]], control)
        except (BrokenPipeError, ConnectionResetError):
            return  # init may hang up at once


def survives(box, data, fd_count, pieces):
    async def main():
        throw(box, data, fd_count, pieces)
        await box.client.ping()
        assert len(box.open_fds()) == 1

    asyncio.run(main())


@fuzz
@given(data=messages, fd_count=st.integers(0, 6), pieces=st.integers(1, 3))
def test_no_bytes_kill_init_or_leave_an_fd_behind(box, data, fd_count, pieces):
    survives(box, data, fd_count, pieces)


@fuzz
@given(data=messages, fd_count=st.integers(0, 6), pieces=st.integers(1, 3))
def test_no_bytes_make_init_touch_memory_that_it_should_not(sanitized_box, data, fd_count, pieces):
    survives(sanitized_box, data, fd_count, pieces)


def test_the_sanitized_init_does_the_ordinary_things_cleanly(sanitized_box):
    async def main():
        assert await sanitized_box.run("/bin/sh", "-c", "echo x; exit 2") == (2, b"x\n")
        pid, stdout = await sanitized_box.start("/bin/sh", "-c", "sleep 1000 & sleep 1000")
        await sanitized_box.client.kill_all()
        assert await sanitized_box.client.wait(pid) == 137
        stdout.close()

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"", b"x", SPAWN[:-1], SPAWN + b"x", SPAWN + b"x\0"])
def test_a_malformed_spawn_is_refused_with_a_reason(box, body):
    with box.connect() as raw:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [box.null] * 3))]
        raw.sendmsg([struct.pack("=II", 2, len(body)) + body], rights)
        assert raw.recv(64) == struct.pack("=IIII", 22, 1, 0, 0)


@pytest.mark.parametrize("fd_count", [0, 1, 2])
def test_a_spawn_without_its_three_fds_is_refused(box, fd_count):
    with box.connect() as raw:
        rights = array.array("i", [box.null] * fd_count)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fd_count else []
        raw.sendmsg([struct.pack("=II", 2, len(SPAWN)) + SPAWN], control)
        assert raw.recv(64) == struct.pack("=IIII", 22, 1, 0, 0)


@pytest.mark.parametrize(("header", "number"), [((1, 2**20 + 1), 7), ((99, 0), 38)])
def test_an_oversized_or_unknown_request_is_refused_with_a_reason(box, header, number):
    with box.connect() as raw:
        raw.sendall(struct.pack("=II", *header))
        assert raw.recv(64) == struct.pack("=IIII", number, 1, 0, 0)


def test_a_silent_connection_does_not_hold_up_others(box):
    async def main():
        with box.connect() as silent:
            silent.sendall(b"\x02")
            assert (await box.run("echo", "served"))[1] == b"served\n"

    asyncio.run(main())


def test_a_process_of_the_box_cannot_use_the_socket_whatever_its_uid(box):
    script = (
        "import socket, struct, sys\n"
        "raw = socket.socket(socket.AF_UNIX)\n"
        "raw.connect(sys.argv[1])\n"
        "try:\n"
        "    raw.sendall(struct.pack('=II', 1, 0))\n"
        "    answer = raw.recv(64)\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    answer = b''\n"
        "sys.exit(0 if answer == b'' else 1)\n"
    )
    path = str(box.socket_path)
    assert asyncio.run(box.run(sys.executable, "-I", "-c", script, path)) == (0, b"")


def test_only_its_owner_may_connect_to_the_socket(box):
    assert box.socket_path.stat().st_mode & 0o777 == 0o600
