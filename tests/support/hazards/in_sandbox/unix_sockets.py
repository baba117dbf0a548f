"""Sockets of the unix family."""

import array
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import BIG, HELD, Helper, Section, expect, is_empty, readable

a = Section("Unix sockets")
STREAM, DGRAM, PACKET = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
OTHER_USER = 12345


def talk(near: socket.socket, far: socket.socket) -> None:
    """Send both ways; nothing else is there."""
    is_empty(far, "a socket")
    for sender, receiver in ((near, far), (far, near)):
        sender.send(HELD)
        readable(receiver, "a socket")
        expect(receiver.recv(100), HELD, "new bytes")


def server(address: str, kind: int = STREAM) -> socket.socket:
    """Listen."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(address)
    made.listen(8)
    return made


def connection(address: str, kind: int = STREAM) -> list[socket.socket]:
    """Return a server, its client and what it has accepted."""
    listener = server(address, kind)
    near = client(address, kind)
    return [listener, near, listener.accept()[0]]


def client(address: str, kind: int = STREAM) -> socket.socket:
    """Connect."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.connect(address)
    return made


def check_connection(address: str, held: list[socket.socket], kind: int = STREAM) -> None:
    """Talk over the old connection and over a new one."""
    listener, near, far = held
    talk(near, far)
    again = client(address, kind)
    readable(listener, "a listening socket")
    talk(again, listener.accept()[0])


@a("named stream: own address of an accepted connection")
def accepted_address(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    _listener, near, far = connection(address)
    yield
    found = far.getsockname(), near.getpeername()
    expect(found, (address, address), "the address, seen from both ends")


@a("stream pair")
def stream_pair(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    yield
    talk(near, far)


@a("stream pair, unread bytes both ways")
def stream_pair_unread(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.send(HELD)
    far.send(HELD[::-1])
    yield
    expect(far.recv(100), HELD, "unread bytes")
    expect(near.recv(100), HELD[::-1], "unread bytes")
    talk(near, far)


@a("stream pair, megabytes unsent by a blocked process")
def stream_pair_unsent(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    sent = os.urandom(1024) * (BIG >> 10)
    helper = Helper(lambda: near.sendall(sent), blocks=True)
    yield
    found = bytearray()
    while len(found) < len(sent):
        readable(far, "megabytes on the way")
        found += far.recv(1 << 20)
    expect(bytes(found) == sent, True, "the megabytes are the same")
    expect(helper.result(), "None", "the end of the sending")


@a("stream pair, full on one side")
def stream_pair_full(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    near.setblocking(False)
    sent = fill(near)
    yield
    far.settimeout(5)
    found = b""
    while len(found) < len(sent):
        found += far.recv(1 << 20)
    expect(found == sent, True, "the bytes are the same")
    talk(near, far)


def fill(sender: socket.socket) -> bytes:
    """Send until the kernel takes no more; return what it took."""
    sent = b""
    while True:
        part = os.urandom(1 << 12)
        try:
            sent += part[: sender.send(part)]
        except BlockingIOError:
            return sent


@a("stream pair, one direction closed, unread bytes")
def stream_half_closed(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.send(HELD)
    near.shutdown(socket.SHUT_WR)
    yield
    expect(far.recv(100), HELD, "unread bytes")
    expect(far.recv(100), b"", "the end")
    far.send(HELD)
    expect(near.recv(100), HELD, "the other direction")


@a("stream pair, the peer gone, unread bytes")
def stream_peer_gone(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.send(HELD)
    near.close()
    yield
    expect(far.recv(100), HELD, "unread bytes")
    expect(far.recv(100), b"", "the end")


@a("stream pair, urgent byte")
def stream_urgent(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.send(b"!", socket.MSG_OOB)
    near.send(HELD)
    yield
    expect(far.recv(1, socket.MSG_OOB), b"!", "the urgent byte")
    expect(far.recv(100), HELD, "the other bytes")


@a("datagram pair")
def dgram_pair(room: Path) -> Iterator[None]:
    near, far = socket.socketpair(socket.AF_UNIX, DGRAM)
    yield
    talk(near, far)


@a("datagram pair, unread datagrams")
def dgram_pair_unread(room: Path) -> Iterator[None]:
    near, far = socket.socketpair(socket.AF_UNIX, DGRAM)
    for part in (b"first", b"second", b"third"):
        near.send(part)
    yield
    expect([received(far) for _ in range(3)], [b"first", b"second", b"third"], "datagrams")
    talk(near, far)


@a("datagram pair, unread empty datagram")
def dgram_pair_empty(room: Path) -> Iterator[None]:
    near, far = socket.socketpair(socket.AF_UNIX, DGRAM)
    near.send(b"")
    yield
    expect(received(far), b"", "the datagram")


def received(sock: socket.socket) -> bytes:
    """Receive one datagram that must be there."""
    readable(sock, "a datagram")
    return sock.recv(1 << 16)


@a("packet pair, unread packets")
def packet_pair_unread(room: Path) -> Iterator[None]:
    near, far = socket.socketpair(socket.AF_UNIX, PACKET)
    near.send(b"first")
    near.send(b"second")
    yield
    expect([received(far) for _ in range(2)], [b"first", b"second"], "packets")
    talk(near, far)


@a("named stream: listening and connected")
def named_stream(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    held = connection(address)
    yield
    check_connection(address, held)


@a("named stream, unread bytes both ways")
def named_stream_unread(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    held = connection(address)
    held[1].send(HELD)
    held[2].send(HELD)
    yield
    expect((held[2].recv(100), held[1].recv(100)), (HELD, HELD), "unread bytes")
    check_connection(address, held)


@a("named stream, bound by a relative name")
def named_relative(room: Path) -> Iterator[None]:
    held = connection("relative")
    yield
    check_connection("relative", held)


@a("named stream, its name deleted")
def named_deleted(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    _listener, near, far = connection(address)
    Path(address).unlink()
    yield
    talk(near, far)
    expect(Path(address).exists(), False, "the deleted name")


@a("named stream, its name taken by another server")
def named_replaced(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    _old, near, far = connection(address)
    Path(address).unlink()
    held = connection(address)
    yield
    talk(near, far)
    check_connection(address, held)


@a("abstract stream: listening and connected")
def abstract_stream(room: Path) -> Iterator[None]:
    held = connection("\0hazard")
    yield
    check_connection("\0hazard", held)


@a("named packet socket: listening and connected")
def named_packet(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    held = connection(address, PACKET)
    yield
    check_connection(address, held, PACKET)


@a("connection that nobody has accepted")
def not_accepted(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    listener, near = server(address), client(address)
    near.send(HELD)
    yield
    readable(listener, "a waiting connection")
    far, _ = listener.accept()
    expect(far.recv(100), HELD, "bytes of a waiting connection")
    talk(near, far)


@a("process that waits in accept")
def waits_in_accept(room: Path) -> Iterator[None]:
    address = f"{room}/socket"
    listener = server(address)
    helper = Helper(lambda: listener.accept()[0].recv(100), blocks=True)
    yield
    client(address).send(HELD)
    expect(helper.result(), repr(HELD), "what the process received")


@a("named datagram socket, unread datagrams with their senders")
def named_dgram(room: Path) -> Iterator[None]:
    receiver, sender = (socket.socket(socket.AF_UNIX, DGRAM) for _ in range(2))
    receiver.bind(f"{room}/receiver")
    sender.bind(f"{room}/sender")
    sender.sendto(b"first", f"{room}/receiver")
    sender.sendto(b"second", f"{room}/receiver")
    yield
    for part in (b"first", b"second"):
        readable(receiver, "a datagram")
        expect(receiver.recvfrom(100), (part, f"{room}/sender"), "a datagram and its sender")
    sender.sendto(HELD, f"{room}/receiver")
    expect(received(receiver), HELD, "a new datagram")


@a("datagram socket of a socket that is connected to it")
def dgram_connected(room: Path) -> Iterator[None]:
    receiver, sender = (socket.socket(socket.AF_UNIX, DGRAM) for _ in range(2))
    receiver.bind("\0hazard-log")
    sender.connect("\0hazard-log")
    yield
    sender.send(HELD)
    expect(received(receiver), HELD, "a datagram")


def peer_of(sock: socket.socket) -> tuple[int, int, int]:
    """Return the process, the user and the group at the other end."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", packed)


def become_other_user() -> None:
    """Become a user who is not root."""
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)


@a("credentials of a peer: another user's connection")
def peer_credentials(room: Path) -> Iterator[None]:
    listener = server("\0hazard-service")
    made: list[socket.socket] = []

    def prepare() -> None:
        become_other_user()
        made.append(client("\0hazard-service"))

    helper = Helper(lambda: made[0].send(HELD), prepare=prepare)
    far, _ = listener.accept()
    before = peer_of(far)
    expect(before[1:], (OTHER_USER, OTHER_USER), "the other user")
    yield
    expect(peer_of(far), before, "process, user and group of the peer")
    helper.result()
    expect(far.recv(100), HELD, "bytes")


@a("credentials of a peer: a listening socket of another user")
def listener_credentials(room: Path) -> Iterator[None]:
    made: list[socket.socket] = []

    def prepare() -> None:
        become_other_user()
        made.append(server("\0hazard-other"))

    helper = Helper(lambda: made[0].accept()[0].send(HELD), prepare=prepare)
    yield
    near = client("\0hazard-other")
    expect(peer_of(near)[1:], (OTHER_USER, OTHER_USER), "user and group of the server")
    helper.result()
    expect(near.recv(100), HELD, "bytes")


@a("credentials of a peer: a socket pair")
def pair_credentials(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    before = peer_of(near)
    yield
    expect(peer_of(near), before, "process, user and group of the peer")
    talk(near, far)


@a("descriptor that is passed and not received (SCM_RIGHTS)")
def passed_descriptor(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    (room / "passed").write_bytes(HELD)
    with (room / "passed").open("rb") as file:
        socket.send_fds(near, [b"!"], [file.fileno()])
    yield
    readable(far, "a passed descriptor")
    data, fds, _, _ = socket.recv_fds(far, 10, 4)
    expect((data, len(fds)), (b"!", 1), "the message")
    expect(os.read(fds[0], 100), HELD, "the passed file")
    talk(near, far)


@a("socket that is passed and not received (SCM_RIGHTS)")
def passed_socket(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    inner, outer = socket.socketpair()
    inner.send(HELD)
    socket.send_fds(near, [b"!"], [outer.fileno()])
    outer.close()
    yield
    readable(far, "a passed socket")
    _, fds, _, _ = socket.recv_fds(far, 10, 4)
    expect(len(fds), 1, "passed sockets")
    expect(socket.socket(fileno=fds[0]).recv(100), HELD, "bytes of the passed socket")


@a("credentials that are sent and not received (SCM_CREDENTIALS)")
def sent_credentials(room: Path) -> Iterator[None]:
    near, far = socket.socketpair(socket.AF_UNIX, DGRAM)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    Helper(lambda: None, prepare=lambda: (become_other_user(), near.send(HELD)))
    yield
    data, ancillary, _, _ = far.recvmsg(100, 100)
    found = [array.array("i", packed).tolist()[1:] for _, _, packed in ancillary]
    expect((data, found), (HELD, [[OTHER_USER] * 2]), "the sender's user and group")
