"""Sockets of the internet families, and of others that a network has."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import BIG, HELD, PATIENCE, Helper, Lost, Section, expect, readable
from .unix_sockets import fill, received, talk

a = Section("Network sockets")
V4, V6 = socket.AF_INET, socket.AF_INET6
HOST = {V4: "127.0.0.1", V6: "::1"}


def server(family: int = V4) -> socket.socket:
    """Listen on a free port."""
    return socket.create_server((HOST[family], 0), family=family)


def connection(family: int = V4) -> list[socket.socket]:
    """Return a server, its client and what it has accepted."""
    listener = server(family)
    near = socket.create_connection(listener.getsockname()[:2], PATIENCE)
    far, _ = listener.accept()
    far.settimeout(PATIENCE)
    return [listener, near, far]


@a("TCP, listening")
def tcp_listening(room: Path) -> Iterator[None]:
    listener = server()
    yield
    near = socket.create_connection(listener.getsockname(), PATIENCE)
    talk(near, listener.accept()[0])


@a("TCP, bound and not listening")
def tcp_bound(room: Path) -> Iterator[None]:
    bound = socket.socket()
    bound.bind((HOST[V4], 0))
    before = bound.getsockname()
    yield
    expect(bound.getsockname(), before, "its address")
    bound.listen()
    near = socket.create_connection(before, PATIENCE)
    talk(near, bound.accept()[0])


@a("TCP, not connected")
def tcp_new(room: Path) -> Iterator[None]:
    listener, new = server(), socket.socket()
    yield
    new.settimeout(PATIENCE)
    new.connect(listener.getsockname())
    talk(new, listener.accept()[0])


@a("TCP, connected")
def tcp_connected(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    names = near.getsockname(), near.getpeername()
    yield
    expect((near.getsockname(), near.getpeername()), names, "its addresses")
    talk(near, far)


@a("TCP over IPv6, connected, unread bytes")
def tcp6_connected(room: Path) -> Iterator[None]:
    _listener, near, far = connection(V6)
    near.sendall(HELD)
    yield
    expect(received(far), HELD, "unread bytes")
    talk(near, far)


@a("TCP, unread bytes both ways")
def tcp_unread(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.sendall(HELD)
    far.sendall(HELD[::-1])
    yield
    expect((received(far), received(near)), (HELD, HELD[::-1]), "unread bytes")
    talk(near, far)


@a("TCP, full: megabytes unsent")
def tcp_full(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.setblocking(False)
    sent = fill(near)
    yield
    drain(far, sent)
    talk(near, far)


def drain(far: socket.socket, sent: bytes) -> None:
    """Receive all that was sent."""
    found = bytearray()
    while len(found) < len(sent):
        readable(far, f"after {len(found)} of {len(sent)} bytes")
        if not (data := far.recv(1 << 20)):
            raise Lost(f"the end after {len(found)} of {len(sent)} bytes")
        found += data
    expect(bytes(found) == sent, True, "the bytes are the same")


@a("TCP, megabytes unsent by a blocked process")
def tcp_unsent(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    sent = os.urandom(1024) * (2 * BIG >> 10)
    near.settimeout(None)
    helper = Helper(lambda: near.sendall(sent), blocks=True)
    yield
    drain(far, sent)
    expect(helper.result(), "None", "the end of the sending")


@a("TCP, connection that nobody has accepted")
def tcp_not_accepted(room: Path) -> Iterator[None]:
    listener = server()
    near = socket.create_connection(listener.getsockname(), PATIENCE)
    near.sendall(HELD)
    readable(listener, "a waiting connection")
    yield
    readable(listener, "a waiting connection")
    far, _ = listener.accept()
    expect(received(far), HELD, "bytes of a waiting connection")
    talk(near, far)


@a("TCP, connecting to a full backlog")
def tcp_connecting(room: Path) -> Iterator[None]:
    listener = socket.socket()
    listener.bind((HOST[V4], 0))
    listener.listen(0)
    waiting = [socket.socket() for _ in range(3)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    before = [state(each) for each in waiting]
    yield
    expect([state(each) for each in waiting], before, "their states")


def state(sock: socket.socket) -> int:
    """Return the state of a TCP connection: 1 is established, 2 is connecting."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


@a("TCP, one direction closed, unread bytes")
def tcp_half_closed(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.sendall(HELD)
    near.shutdown(socket.SHUT_WR)
    readable(far, "bytes")
    yield
    expect(far.recv(100), HELD, "unread bytes")
    expect(far.recv(100), b"", "the end")
    far.sendall(HELD)
    expect(received(near), HELD, "the other direction")


@a("TCP, closed by the peer, unread bytes")
def tcp_peer_gone(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.sendall(HELD)
    near.close()
    readable(far, "bytes")
    yield
    expect(far.recv(100), HELD, "unread bytes")
    expect(far.recv(100), b"", "the end")


@a("TCP, reset by the peer")
def tcp_reset(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
    readable(far, "a reset")
    yield
    try:
        expect(far.recv(100), "a reset", "what is received")
    except ConnectionResetError:
        return


@a("TCP, urgent byte")
def tcp_urgent(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    near.send(b"!", socket.MSG_OOB)
    near.sendall(HELD)
    readable(far, "bytes")
    yield
    expect(far.recv(1, socket.MSG_OOB), b"!", "the urgent byte")
    expect(far.recv(100), HELD, "the other bytes")


@a("TCP, process that waits for bytes")
def tcp_waits(room: Path) -> Iterator[None]:
    _listener, near, far = connection()
    far.settimeout(None)
    helper = Helper(lambda: far.recv(100), blocks=True)
    yield
    near.sendall(HELD)
    expect(helper.result(), repr(HELD), "what the process received")


@a("TCP, encrypted by the kernel (kTLS)")
def tcp_tls(room: Path) -> Iterator[None]:
    _listener, near, _far = connection()
    near.setsockopt(socket.IPPROTO_TCP, 31, b"tls")
    yield
    expect(near.getsockopt(socket.IPPROTO_TCP, 31, 16).rstrip(b"\0"), b"tls", "its protocol")


@a("MPTCP, connected")
def mptcp(room: Path) -> Iterator[None]:
    listener = socket.socket(V4, socket.SOCK_STREAM, 262)
    listener.bind((HOST[V4], 0))
    listener.listen()
    near = socket.socket(V4, socket.SOCK_STREAM, 262)
    near.connect(listener.getsockname())
    far, _ = listener.accept()
    yield
    talk(near, far)


@a("SCTP, listening")
def sctp(room: Path) -> Iterator[None]:
    listener = socket.socket(V4, socket.SOCK_STREAM, 132)
    listener.bind((HOST[V4], 0))
    listener.listen()
    yield
    expect(listener.getsockname()[0], HOST[V4], "its address")


def udp(family: int = V4) -> socket.socket:
    """Return a bound socket."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.bind((HOST[family], 0))
    return made


@a("UDP, bound and connected")
def udp_connected(room: Path) -> Iterator[None]:
    near, far = udp(), udp()
    near.connect(far.getsockname())
    far.connect(near.getsockname())
    yield
    talk(near, far)


@a("UDP over IPv6, bound and connected")
def udp6_connected(room: Path) -> Iterator[None]:
    near, far = udp(V6), udp(V6)
    near.connect(far.getsockname())
    far.connect(near.getsockname())
    yield
    talk(near, far)


@a("UDP, unread datagrams with their sender")
def udp_unread(room: Path) -> Iterator[None]:
    near, far = udp(), udp()
    for part in (b"first", b"second"):
        near.sendto(part, far.getsockname())
    yield
    for part in (b"first", b"second"):
        readable(far, "a datagram")
        expect(far.recvfrom(100), (part, near.getsockname()), "a datagram and its sender")


@a("UDP, the interface of multicast datagrams")
def udp_multicast_interface(room: Path) -> Iterator[None]:
    sender, loopback = socket.socket(V4, socket.SOCK_DGRAM), socket.inet_aton(HOST[V4])
    sender.setsockopt(0, socket.IP_MULTICAST_IF, loopback)
    yield
    expect(sender.getsockopt(0, socket.IP_MULTICAST_IF, 4), loopback, "its address")


@a("UDP, unsent part of a datagram (MSG_MORE)")
def udp_corked(room: Path) -> Iterator[None]:
    near, far = udp(), udp()
    near.connect(far.getsockname())
    near.send(HELD, socket.MSG_MORE)
    yield
    near.send(b"!")
    expect(received(far), HELD + b"!", "a datagram")


@a("UDP, member of a multicast group")
def udp_member(room: Path) -> Iterator[None]:
    near, far = socket.socket(V4, socket.SOCK_DGRAM), socket.socket(V4, socket.SOCK_DGRAM)
    loopback = socket.inet_aton(HOST[V4])
    far.bind(("", 0))
    group = ("239.1.2.3", far.getsockname()[1])
    far.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group[0]) + loopback)
    near.setsockopt(0, socket.IP_MULTICAST_IF, loopback)
    near.sendto(b"before", group)
    expect(received(far), b"before", "a datagram")
    yield
    near.sendto(HELD, group)
    expect(received(far), HELD, "a datagram to the group")


@a("UDP-Lite, bound")
def udp_lite(room: Path) -> Iterator[None]:
    near, far = (socket.socket(V4, socket.SOCK_DGRAM, 136) for _ in range(2))
    far.bind((HOST[V4], 0))
    near.connect(far.getsockname())
    yield
    near.send(HELD)
    expect(received(far), HELD, "a datagram")


@a("ICMP echo socket")
def ping(room: Path) -> Iterator[None]:
    made = socket.socket(V4, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    made.connect((HOST[V4], 0))
    yield
    made.send(struct.pack("!BBHHH", 8, 0, 0, 1, 1))
    expect(received(made)[:1], b"\0", "an answer")


@a("raw socket")
def raw(room: Path) -> Iterator[None]:
    made = socket.socket(V4, socket.SOCK_RAW, 253)
    made.connect((HOST[V4], 0))
    yield
    made.send(HELD)
    expect(received(made)[-len(HELD) :], HELD, "a packet")


@a("packet socket")
def packet(room: Path) -> Iterator[None]:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    yield
    expect(made.family, socket.AF_PACKET, "its family")


@a("vsock")
def vsock(room: Path) -> Iterator[None]:
    made = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    yield
    expect(made.family, socket.AF_VSOCK, "its family")


@a("kernel crypto socket (AF_ALG)")
def alg(room: Path) -> Iterator[None]:
    made = socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)
    made.bind(("hash", "sha256"))
    yield
    expect(made.accept()[0].family, socket.AF_ALG, "its family")


LINKS = struct.pack("IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0)
"""A request for the list of all links."""


def netlink(protocol: int = 0, groups: int = 0) -> socket.socket:
    """Return a bound netlink socket."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    made.bind((0, groups))
    return made


@a("netlink (route)")
def netlink_route(room: Path) -> Iterator[None]:
    made = netlink()
    before = made.getsockname()
    yield
    expect(made.getsockname(), before, "its address")
    made.send(LINKS)
    expect(len(received(made)) > 100, True, "there is an answer")


@a("netlink (route), unread answer")
def netlink_unread(room: Path) -> Iterator[None]:
    made = netlink()
    made.send(LINKS)
    readable(made, "an answer")
    yield
    expect(len(received(made)) > 100, True, "there is an answer")


@a("netlink (route), member of groups")
def netlink_groups(room: Path) -> Iterator[None]:
    made = netlink(groups=0x11)
    yield
    expect(made.getsockname()[1], 0x11, "its groups")


@a("netlink (events of devices)")
def netlink_uevent(room: Path) -> Iterator[None]:
    made = netlink(15, 1)
    yield
    expect(made.getsockname()[1], 1, "its groups")


@a("netlink (socket diagnosis)")
def netlink_diagnosis(room: Path) -> Iterator[None]:
    made = netlink(4)
    before = made.getsockname()
    yield
    expect(made.getsockname(), before, "its address")
