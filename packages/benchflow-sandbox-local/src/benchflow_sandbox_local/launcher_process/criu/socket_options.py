"""Options of sockets that the engine of live snapshots does not restore."""

import errno
import socket
from collections.abc import Iterator
from functools import cache

_INET, _INET6 = socket.AF_INET, socket.AF_INET6
_SOL, _IP, _IP6 = socket.SOL_SOCKET, socket.IPPROTO_IP, socket.IPPROTO_IPV6
_TCP, _UDP, _NETLINK = socket.IPPROTO_TCP, socket.IPPROTO_UDP, 270

# The numbers of the kernel's headers, because Python defines few of them.
_ANY = {
    "SO_TIMESTAMP": 29,
    "SO_TIMESTAMPNS": 35,
    "SO_TIMESTAMPING": 37,
    "SO_RXQ_OVFL": 40,
    "SO_PEEK_OFF": 42,
    "SO_SELECT_ERR_QUEUE": 45,
    "SO_BUSY_POLL": 46,
    "SO_MAX_PACING_RATE": 47,
    "SO_PREFER_BUSY_POLL": 69,
    "SO_TXREHASH": 74,
}
_OF_IP = {
    "IP_RECVOPTS": 6,
    "IP_RETOPTS": 7,
    "IP_MTU_DISCOVER": 10,
    "IP_RECVERR": 11,
    "IP_RECVTTL": 12,
    "IP_RECVTOS": 13,
    "IP_MINTTL": 21,
    "IP_BIND_ADDRESS_NO_PORT": 24,
    "IP_RECVFRAGSIZE": 25,
    "IP_RECVERR_RFC4884": 26,
    "IP_LOCAL_PORT_RANGE": 51,
}
_OF_IP_DATAGRAMS = {
    "IP_MULTICAST_IF": 32,
    "IP_MULTICAST_TTL": 33,
    "IP_MULTICAST_LOOP": 34,
    "IP_MULTICAST_ALL": 49,
}
_OF_IP6 = {
    "IPV6_UNICAST_HOPS": 16,
    "IPV6_MTU_DISCOVER": 23,
    "IPV6_RECVERR": 25,
    "IPV6_RECVHOPLIMIT": 51,
    "IPV6_DONTFRAG": 62,
    "IPV6_RECVTCLASS": 66,
    "IPV6_TCLASS": 67,
    "IPV6_AUTOFLOWLABEL": 70,
    "IPV6_MINHOPCOUNT": 73,
}
_OF_IP6_DATAGRAMS = {
    "IPV6_MULTICAST_IF": 17,
    "IPV6_MULTICAST_HOPS": 18,
    "IPV6_MULTICAST_LOOP": 19,
    "IPV6_MULTICAST_ALL": 29,
}
_OF_TCP = {
    "TCP_SYNCNT": 7,
    "TCP_LINGER2": 8,
    "TCP_DEFER_ACCEPT": 9,
    "TCP_CONGESTION": 13,
    "TCP_THIN_LINEAR_TIMEOUTS": 16,
    "TCP_USER_TIMEOUT": 18,
    "TCP_FASTOPEN": 23,
    "TCP_NOTSENT_LOWAT": 25,
    "TCP_SAVE_SYN": 27,
    "TCP_FASTOPEN_CONNECT": 30,
    "TCP_FASTOPEN_NO_COOKIE": 34,
    "TCP_INQ": 36,
    "TCP_TX_DELAY": 37,
}
_OF_UDP = {"UDP_NO_CHECK6_TX": 101, "UDP_NO_CHECK6_RX": 102, "UDP_SEGMENT": 103, "UDP_GRO": 104}
_OF_NETLINK = {
    "NETLINK_PKTINFO": 3,
    "NETLINK_BROADCAST_ERROR": 4,
    "NETLINK_NO_ENOBUFS": 5,
    "NETLINK_CAP_ACK": 10,
    "NETLINK_EXT_ACK": 11,
    "NETLINK_GET_STRICT_CHK": 12,
}
_MAX_BYTES = 16
_NO_MEMORY = {errno.ENOMEM, errno.ENOBUFS}


def differing(sock: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Yield level, number and value of each option that differs from a new socket's."""
    for level, option, default in _defaults(sock.family, sock.type, sock.proto):
        value = sock.getsockopt(level, option, _MAX_BYTES)
        if value != default and _can_be_set(sock, level, option, value):
            yield level, option, value


def _can_be_set(sock: socket.socket, level: int, option: int, value: bytes) -> bool:
    """Return whether a program can set this value. Some values come only from the kernel."""
    try:
        sock.setsockopt(level, option, value)
    except OSError as error:
        if error.errno in _NO_MEMORY:
            raise
        return False
    return True


@cache
def _defaults(family: int, kind: int, protocol: int) -> tuple[tuple[int, int, bytes], ...]:
    """Return the options of a kind of socket, each with the value of a new socket."""
    defaults: list[tuple[int, int, bytes]] = []
    with socket.socket(family, kind, protocol) as new:
        for level, options in _tables(family, kind, protocol):
            for option in options.values():
                try:
                    defaults.append((level, option, new.getsockopt(level, option, _MAX_BYTES)))
                except OSError as error:
                    if error.errno in _NO_MEMORY:
                        raise
                    continue  # this kernel does not have the option
    return tuple(defaults)


def _tables(family: int, kind: int, protocol: int) -> Iterator[tuple[int, dict[str, int]]]:
    yield _SOL, _ANY
    if family in {_INET, _INET6}:
        yield _IP, _OF_IP
        if kind != socket.SOCK_STREAM:
            yield _IP, _OF_IP_DATAGRAMS
        if protocol in {_TCP, _UDP}:
            yield protocol, _OF_TCP if protocol == _TCP else _OF_UDP
    if family == _INET6:
        yield _IP6, _OF_IP6 if kind == socket.SOCK_STREAM else _OF_IP6 | _OF_IP6_DATAGRAMS
    if family == socket.AF_NETLINK:
        yield _NETLINK, _OF_NETLINK
