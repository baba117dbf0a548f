"""The network and user namespaces of a sandbox. The network consists of a loopback."""

import fcntl
import os
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager

from benchflow_sandbox_local.launcher_process.syscalls import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    setns,
    unshare,
)

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def raise_loopback() -> None:
    """Bring `lo` of this network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)


def listen(port: int) -> socket.socket:
    """Return a listener at 127.0.0.1:`port` of this network namespace."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock


def new_namespace() -> int:
    """Create a network namespace with a loopback. The calling process stays in its own one."""
    with _return_after():
        unshare(CLONE_NEWNET)
        raise_loopback()
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def listen_in(netns: int, port: int) -> socket.socket:
    """Return a listener in the namespace `netns`. The calling process stays in its own one."""
    with _return_after():
        setns(netns, CLONE_NEWNET)
        return listen(port)


@contextmanager
def _return_after() -> Generator[None]:
    """Return to the present network namespace after the block."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        setns(own, CLONE_NEWNET)
        os.close(own)


def socket_in(netns: int, *, return_after: bool) -> socket.socket:
    """Return an unconnected TCP socket in the namespace `netns`.

    A socket stays in the namespace in which it was created, also in another process. Without
    `return_after`, the calling process stays in `netns`.
    """
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(netns, CLONE_NEWNET)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            if return_after:
                setns(own, CLONE_NEWNET)
    finally:
        os.close(own)


def enter_user_namespace() -> None:
    """Become root of a user namespace that maps only the current user."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    _write_map("/proc/self/setgroups", "deny")
    _write_map("/proc/self/uid_map", f"0 {uid} 1")
    _write_map("/proc/self/gid_map", f"0 {gid} 1")


def _write_map(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)
