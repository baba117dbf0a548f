"""The listening socket of BenchFlow's HTTP servers."""

import socket

from benchflow_contracts import UsageError


def open_listener(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens. Port 0 takes a free one.

    Raises:
        UsageError: The address is in use, or is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the protocol, asyncio leaves Nagle's algorithm on, and each answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # A client may connect as soon as it knows the URL, before the application has started.
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="name another port with --port; --port 0 takes a free one",
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
