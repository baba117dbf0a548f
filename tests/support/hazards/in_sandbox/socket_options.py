"""Options of sockets, one object each: set to a value that no new socket has."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from .inet_sockets import connection, netlink, server, udp
from .kernel_object import Builder, Section, expect
from .unix_sockets import talk

a = Section("Options of sockets")
SOL, IP, IP6, TCP, UDP = (
    socket.SOL_SOCKET,
    socket.IPPROTO_IP,
    socket.IPPROTO_IPV6,
    socket.IPPROTO_TCP,
    socket.IPPROTO_UDP,
)
TIME = struct.pack("ll", 7, 0)

# Where, level, number, value. Numbers that Python does not name are those of the kernel's headers.
OPTIONS: dict[str, tuple[str, int, int, int | bytes]] = {
    "SO_KEEPALIVE": ("connected", SOL, socket.SO_KEEPALIVE, 1),
    "SO_LINGER": ("connected", SOL, socket.SO_LINGER, struct.pack("ii", 1, 7)),
    "SO_RCVBUF": ("connected", SOL, socket.SO_RCVBUF, 32768),
    "SO_SNDBUF": ("connected", SOL, socket.SO_SNDBUF, 32768),
    "SO_RCVLOWAT": ("connected", SOL, socket.SO_RCVLOWAT, 7),
    "SO_RCVTIMEO": ("connected", SOL, socket.SO_RCVTIMEO, TIME),
    "SO_SNDTIMEO": ("connected", SOL, socket.SO_SNDTIMEO, TIME),
    "SO_OOBINLINE": ("connected", SOL, socket.SO_OOBINLINE, 1),
    "SO_PRIORITY": ("connected", SOL, socket.SO_PRIORITY, 3),
    "SO_TIMESTAMP": ("udp", SOL, 29, 1),
    "SO_TIMESTAMPNS": ("udp", SOL, 35, 1),
    "SO_REUSEADDR": ("udp", SOL, socket.SO_REUSEADDR, 1),
    "SO_REUSEPORT": ("udp", SOL, socket.SO_REUSEPORT, 1),
    "SO_BROADCAST": ("udp", SOL, socket.SO_BROADCAST, 1),
    "SO_DONTROUTE": ("udp", SOL, socket.SO_DONTROUTE, 1),
    "SO_NO_CHECK": ("udp", SOL, 11, 1),
    "SO_PEEK_OFF": ("unix", SOL, 42, 0),
    "SO_PASSCRED": ("unix", SOL, socket.SO_PASSCRED, 1),
    "SO_BUSY_POLL": ("connected", SOL, 46, 7),
    "SO_INCOMING_CPU": ("listening", SOL, socket.SO_INCOMING_CPU, 1),
    "SO_BINDTODEVICE": ("udp", SOL, socket.SO_BINDTODEVICE, b"lo"),
    "SO_RXQ_OVFL": ("udp", SOL, 40, 1),
    "SO_SELECT_ERR_QUEUE": ("udp", SOL, 45, 1),
    "SO_TXREHASH": ("connected", SOL, 74, 0),
    "SO_PREFER_BUSY_POLL": ("connected", SOL, 69, 1),
    "SO_MAX_PACING_RATE": ("connected", SOL, 47, 1 << 20),
    "IP_TOS": ("connected", IP, socket.IP_TOS, 8),
    "IP_TTL": ("connected", IP, socket.IP_TTL, 7),
    "IP_MTU_DISCOVER": ("udp", IP, 10, 0),
    "IP_RECVERR": ("udp", IP, 11, 1),
    "IP_PKTINFO": ("udp", IP, 8, 1),
    "IP_RECVTOS": ("udp", IP, 13, 1),
    "IP_RECVTTL": ("udp", IP, 12, 1),
    "IP_FREEBIND": ("udp", IP, 15, 1),
    "IP_MINTTL": ("udp", IP, 21, 7),
    "IP_MULTICAST_TTL": ("udp", IP, socket.IP_MULTICAST_TTL, 7),
    "IP_MULTICAST_LOOP": ("udp", IP, socket.IP_MULTICAST_LOOP, 0),
    "IP_MULTICAST_ALL": ("udp", IP, 49, 0),
    "IP_BIND_ADDRESS_NO_PORT": ("udp", IP, 24, 1),
    "IP_LOCAL_PORT_RANGE": ("udp", IP, 51, struct.pack("HH", 40000, 50000)),
    "IPV6_V6ONLY": ("listening6", IP6, socket.IPV6_V6ONLY, 0),
    "IPV6_UNICAST_HOPS": ("connected6", IP6, socket.IPV6_UNICAST_HOPS, 7),
    "IPV6_TCLASS": ("connected6", IP6, socket.IPV6_TCLASS, 8),
    "IPV6_RECVPKTINFO": ("udp6", IP6, socket.IPV6_RECVPKTINFO, 1),
    "IPV6_MULTICAST_HOPS": ("udp6", IP6, socket.IPV6_MULTICAST_HOPS, 7),
    "IPV6_DONTFRAG": ("udp6", IP6, 62, 1),
    "IPV6_RECVERR": ("udp6", IP6, 25, 1),
    "TCP_NODELAY": ("connected", TCP, socket.TCP_NODELAY, 1),
    "TCP_NODELAY, listening": ("listening", TCP, socket.TCP_NODELAY, 1),
    "TCP_CORK": ("connected", TCP, socket.TCP_CORK, 1),
    "TCP_KEEPIDLE": ("connected", TCP, socket.TCP_KEEPIDLE, 7),
    "TCP_KEEPINTVL": ("connected", TCP, socket.TCP_KEEPINTVL, 7),
    "TCP_KEEPCNT": ("connected", TCP, socket.TCP_KEEPCNT, 7),
    "TCP_USER_TIMEOUT": ("connected", TCP, socket.TCP_USER_TIMEOUT, 7777),
    "TCP_USER_TIMEOUT, listening": ("listening", TCP, socket.TCP_USER_TIMEOUT, 7777),
    "TCP_SYNCNT": ("connected", TCP, socket.TCP_SYNCNT, 7),
    "TCP_LINGER2": ("connected", TCP, socket.TCP_LINGER2, 7),
    "TCP_DEFER_ACCEPT": ("listening", TCP, socket.TCP_DEFER_ACCEPT, 7),
    "TCP_FASTOPEN": ("listening", TCP, socket.TCP_FASTOPEN, 7),
    "TCP_WINDOW_CLAMP": ("connected", TCP, socket.TCP_WINDOW_CLAMP, 32768),
    "TCP_CONGESTION": ("connected", TCP, socket.TCP_CONGESTION, b"reno"),
    "TCP_CONGESTION, listening": ("listening", TCP, socket.TCP_CONGESTION, b"reno"),
    "TCP_NOTSENT_LOWAT": ("connected", TCP, socket.TCP_NOTSENT_LOWAT, 32768),
    "TCP_THIN_LINEAR_TIMEOUTS": ("connected", TCP, 16, 1),
    "TCP_SAVE_SYN": ("listening", TCP, 27, 1),
    "TCP_INQ": ("connected", TCP, 36, 1),
    "TCP_TX_DELAY": ("connected", TCP, 37, 7000),
    "NETLINK_EXT_ACK": ("netlink", 270, 11, 1),
    "UDP_CORK": ("udp", UDP, 1, 1),
    "UDP_SEGMENT": ("udp", UDP, 103, 700),
    "UDP_GRO": ("udp", UDP, 104, 1),
}


def sockets(kind: str) -> list[socket.socket]:
    """Return the socket that gets the option, and then what belongs to it."""
    family = socket.AF_INET6 if kind.endswith("6") else socket.AF_INET
    if kind == "unix":
        return list(socket.socketpair())
    if kind == "netlink":
        return [netlink()]
    if kind.startswith("udp"):
        return [udp(family)]
    if kind.startswith("listening"):
        return [server(family)]
    listener, near, far = connection(family)
    return [near, far, listener]


def value_of(sock: socket.socket, level: int, number: int, size: int) -> bytes:
    """Return an option's value, with the room for it that it may need."""
    return sock.getsockopt(level, number, max(size, 4))


def option(kind: str, level: int, number: int, value: int | bytes) -> Builder:
    """Return a builder."""

    def build(room: Path) -> Iterator[None]:
        held = sockets(kind)
        size = 4 if isinstance(value, int) else max(len(value), 16)
        fresh = value_of(held[0], level, number, size)
        held[0].setsockopt(level, number, value)
        before = value_of(held[0], level, number, size)
        if before == fresh:
            raise OSError(errno.ENOPROTOOPT, "the kernel ignores it")
        yield
        found = value_of(held[0], level, number, size)
        expect(readable_value(found), readable_value(before), "its value")

    return build


def readable_value(raw: bytes) -> object:
    """Return a value as a reader expects it."""
    return int.from_bytes(raw, "little") if len(raw) == 4 else raw.rstrip(b"\0")


for name, setting in OPTIONS.items():
    a(name)(option(*setting))


@a("SO_ATTACH_FILTER")
def filtered(room: Path) -> Iterator[None]:
    near, far = udp(), udp()
    program = struct.pack("HBBIHBBI", 0x06, 0, 0, 10, 0x06, 0, 0, 0)
    room_for = ctypes.create_string_buffer(program)
    far.setsockopt(SOL, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(room_for)))
    yield
    near.sendto(b"more than the filter lets through", far.getsockname())
    expect(len(far.recv(100)), 2, "bytes that the filter lets through")


@a("O_NONBLOCK and close-on-exec")
def flags(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    near.setblocking(False)
    near.set_inheritable(True)
    yield
    found = near.gettimeout(), near.get_inheritable(), far.get_inheritable()
    expect(found, (0.0, True, False), "flags")
    expect(os.get_blocking(near.fileno()), False, "blocking")
    talk(near, far)
