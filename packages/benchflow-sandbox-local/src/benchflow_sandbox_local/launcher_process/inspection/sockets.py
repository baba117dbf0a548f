"""Find state of sockets that a child would lose: data, connections and errors."""

import errno
import fcntl
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from select import POLLERR, POLLIN, POLLPRI

from .process_files import POLLRDHUP, Finding, OpenFile, events

_SIOCINQ, _SIOCOUTQ, _SIOCOUTQNSD = 0x541B, 0x5411, 0x894B
_INET = (socket.AF_INET, socket.AF_INET6)
_MPTCP, _UDPLITE = 262, 136
_PASSED = (16, 76)
"""SO_PASSCRED and SO_PASSPIDFD."""
_PEEK_OFF = 42
_SYN_SENT, _CLOSE_WAIT, _LISTEN = 2, 8, 10
_HALF_CLOSED = {4, 5, 9, 11}
"""FIN_WAIT1, FIN_WAIT2, LAST_ACK and CLOSING: this end has closed its direction."""

_READ = "let the program read it, then snapshot"
_ACCEPT = "let the server accept it, then snapshot"

Reason = tuple[str, bool, str]
"""The loss, whether it drains, and a hint."""


def inspect_socket(file: OpenFile, sock: socket.socket) -> Finding | None:
    """Return the state of one socket that a child would lose."""
    present = events(sock.fileno(), POLLIN | POLLPRI | POLLRDHUP)
    inspect = _INSPECTIONS.get(sock.family, _other)
    reason = _common(present) or inspect(sock, bool(present & POLLIN and not present & POLLRDHUP))
    if reason is None and present & POLLIN and file.facts().get("scm_fds", "0") != "0":
        # No process has these files open, so they cannot be inspected.
        reason = "open files on their way to another process (SCM_RIGHTS)", True, _READ
    if reason is None:
        return None
    loss, drains, hint = reason
    return Finding(f"{loss}: {name_of(sock)} of {file.holder}", drains, hint)


def is_unread_tcp(sock: socket.socket) -> bool:
    """Return whether a TCP connection has unread data. Its other end may then have unsent data."""
    if sock.type != socket.SOCK_STREAM or sock.family not in _INET or _listens(sock):
        return False
    return _count(sock, _SIOCINQ) > 0


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def name_of(sock: socket.socket) -> str:
    """Return the name of a socket for messages."""
    kind = {socket.AF_UNIX: "unix", socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}
    family = kind.get(sock.family, "netlink" if sock.family == socket.AF_NETLINK else "other")
    for get_address in (sock.getsockname, sock.getpeername):
        with suppress(OSError):
            if address := get_address():
                return f"the {family} socket {_text(address)}"
    return f"an unnamed {family} socket"


def _text(address: object) -> str:
    if isinstance(address, tuple):
        host, port, *_ = address  # pyright: ignore[reportUnknownVariableType]
        return f"{host}:{port}"
    if isinstance(address, bytes):
        return repr("@" + address.lstrip(b"\0").decode("utf-8", "replace"))
    return repr(address)


def _common(present: int) -> Reason | None:
    if present & POLLERR:
        return "an error that was not reported yet", True, _READ
    if present & POLLPRI:
        return "unread urgent data", True, _READ
    return None


def _count(sock: socket.socket, request: int) -> int:
    count = bytearray(4)
    fcntl.ioctl(sock.fileno(), request, count)
    return int.from_bytes(count, "little")


def _option(sock: socket.socket, name: int, absent: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, name)
    except OSError as error:
        if error.errno in {errno.ENOPROTOOPT, errno.EOPNOTSUPP}:
            return absent
        raise


def _unix(sock: socket.socket, readable: bool) -> Reason | None:
    if _option(sock, _PEEK_OFF, -1) != -1:
        return "an offset for peeking (SO_PEEK_OFF)", False, "set it again in each child"
    if _listens(sock):
        return ("a connection that was not accepted", True, _ACCEPT) if readable else None
    if not readable and not _count(sock, _SIOCINQ):
        return None
    if any(_option(sock, name, 0) for name in _PASSED):
        return "unread data that names its sender (SO_PASSCRED)", True, _READ
    if sock.type == socket.SOCK_DGRAM and sock.getsockname():
        return "an unread datagram, whose sender has an address", True, _READ
    return None


def _inet(sock: socket.socket, readable: bool) -> Reason | None:
    if sock.proto == _MPTCP:
        return (
            "a multipath TCP socket, which cannot be captured",
            False,
            "Go programs: set GODEBUG=multipathtcp=0",
        )
    if sock.type == socket.SOCK_STREAM:
        return _tcp(sock, readable)
    if readable:
        return "an unread datagram", True, _READ
    if sock.proto in {socket.IPPROTO_UDP, _UDPLITE} and _count(sock, _SIOCOUTQ):
        return "a datagram that is half written (UDP_CORK)", True, "let the program send it"
    return None


def _tcp(sock: socket.socket, readable: bool) -> Reason | None:
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    if state == _LISTEN:
        return ("a connection that was not accepted", True, _ACCEPT) if readable else None
    if state == _SYN_SENT:
        return "a pending connect", True, "wait until it is connected, then snapshot"
    if state in _HALF_CLOSED:
        hint = "let the other end close it, too, then snapshot"
        return "a connection that one end has closed for writing", True, hint
    if waiting := _count(sock, _SIOCOUTQNSD):
        hint = "let the other end read more, then snapshot"
        return f"{waiting} bytes that the other end has no room for", True, hint
    return None


def _netlink(_: socket.socket, readable: bool) -> Reason | None:
    return ("an unread message", True, _READ) if readable else None


def _other(sock: socket.socket, _: bool) -> Reason | None:
    return f"a socket of family {int(sock.family)}, which cannot be captured", False, "close it"


_INSPECTIONS: dict[int, Callable[[socket.socket, bool], Reason | None]] = {
    socket.AF_UNIX: _unix,
    socket.AF_INET: _inet,
    socket.AF_INET6: _inet,
    socket.AF_NETLINK: _netlink,
}


def orphans(pid: int) -> Iterable[Finding]:
    """Yield the closed TCP sockets with unsent data in the network of `pid`.

    The kernel walks the host's table of all connections for this, which takes 7 ms.
    """
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/net/{table}") as file:  # noqa: PTH123
            for line in list(file)[1:]:
                _, local, _, state, queues, _, _, _, _, inode, *_ = line.split()
                unsent = int(queues.partition(":")[0], 16)
                if inode == "0" and unsent and int(state, 16) != _CLOSE_WAIT:
                    port = int(local.rpartition(":")[2], 16)
                    yield Finding(
                        f"{unsent} bytes of a TCP socket (port {port}) that was closed",
                        drains=True,
                        hint="let the other end read more, then snapshot",
                    )
