"""List the unix sockets of a network namespace, with their names and peers.

See sock_diag(7) and linux/unix_diag.h.
"""

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from benchflow_sandbox_local.launcher_process.syscalls import CLONE_NEWNET, setns

_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x300, 3, 2
_SHOW_NAME, _SHOW_PEER = 1, 4
_NAME, _PEER = 0, 2
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST, _ANSWER = struct.Struct("=BBHIIIII"), struct.Struct("=BBBBIII")


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """One unix socket."""

    inode: int
    peer: int
    """The inode of the socket at the other end; 0 without a peer."""
    name: str
    """The path of a bound socket; an abstract name begins with @."""


def unix_sockets(pid: int) -> dict[int, UnixSocket]:
    """Return the unix sockets in the network of `pid`. This process stays in that network."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(namespace, CLONE_NEWNET)
    finally:
        os.close(namespace)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
    ) as sock:
        body = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_PEER, 0, 0)
        size = _HEADER.size + len(body)
        sock.send(_HEADER.pack(size, _BY_FAMILY, _DUMP | 1, 0, 0) + body)
        return {entry.inode: entry for entry in _answers(sock)}


def _answers(sock: socket.socket) -> Iterator[UnixSocket]:
    while True:
        raw = sock.recv(1 << 18)
        at = 0
        while at < len(raw):
            size, kind, *_ = _HEADER.unpack_from(raw, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(5, "the kernel does not list the unix sockets of a sandbox")
            yield _socket(raw[at + _HEADER.size : at + size])
            at += (size + 3) & ~3


def _socket(raw: bytes) -> UnixSocket:
    inode = _ANSWER.unpack_from(raw)[4]
    attributes: dict[int, bytes] = {}
    at = _ANSWER.size
    while at < len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        attributes[kind] = raw[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3
    peer = int.from_bytes(attributes.get(_PEER, b""), "little")
    return UnixSocket(inode, peer, _text(attributes.get(_NAME, b"")))


def _text(name: bytes) -> str:
    shown = b"@" + name[1:] if name.startswith(b"\0") else name.rstrip(b"\0")
    return shown.decode("utf-8", "backslashreplace")
