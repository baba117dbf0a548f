"""The listener of a service: up at once, with the rest of it behind the first request.

A world is started anew for every branch, so what runs before it listens imports nearly
nothing (`_signal`, `_socket`, `_sqlite3` and `_thread` are what their namesakes wrap at a high
price).
The health check is answered here; any other request is handed to `web`, unread.
"""

import _signal
import _socket
import _sqlite3 as sqlite3
import _thread
import time

from .database import hold, look
from .errors import UsageError

IDLE_SECONDS = 60.0
_BACKLOG = 128
_PLAIN = (b"host", b"user-agent", b"accept", b"accept-encoding", b"connection")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Attend = Callable[[int, tuple[str, int]], None]
    """Serves a connection, given by its descriptor and its address, to its end."""


class _Stopped(BaseException):
    """The operator ended the service."""


def _stop(_signum: int, _frame: object) -> None:
    raise _Stopped


class Front:
    """Accepts connections, a thread for each; `load` makes what serves them."""

    def __init__(self, name: str, database: str, load: "Callable[[], Attend]") -> None:
        self._name = name
        self._database = database
        self._load = load

    def serve(self, tables: str, host: str, port: int) -> int:
        """Serve until SIGTERM or SIGINT.

        Raises:
            UsageError: The database or the address cannot be used.
        """
        # Held open, so that the write-ahead log outlives the requests that fill it.
        keeper = hold(self._database, tables)
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
        try:
            _signal.signal(_signal.SIGTERM, _stop)
            _signal.signal(_signal.SIGINT, _stop)
            bound, number = listener.getsockname()
            print(f"{self._name} listens on http://{bound}:{number}", flush=True)
            self._accept(listener)
        except _Stopped:
            return 0
        finally:
            listener.close()
            keeper.close()

    def _accept(self, listener: _socket.socket) -> None:
        while True:
            try:
                fd, address = listener._accept()  # noqa: SLF001 - what socket.accept() wraps
            except OSError:
                # The client was gone before it was greeted.
                continue
            _thread.start_new_thread(self._attend, (fd, address))

    def _attend(self, fd: int, address: tuple[str, int]) -> None:
        wire = _socket.socket(fileno=fd)
        wire.settimeout(IDLE_SECONDS)
        try:
            while (data := wire.recv(4096, _socket.MSG_PEEK)) and (asked := _health(data)):
                if not self._healthy():
                    break
                wire.recv(asked.size)
                wire.sendall(_reply(self._name, asked))
                if asked.last:
                    wire.shutdown(_socket.SHUT_WR)
                    wire.close()
                    return
        except OSError:
            wire.close()
            return
        if not data:
            wire.close()  # who only looked whether somebody listens
            return
        self._load()(wire.detach(), address)

    def _healthy(self) -> bool:
        try:
            db = look(self._database)
            try:
                db.execute("SELECT count(*) FROM settings").fetchone()
            finally:
                db.close()
        except sqlite3.Error:
            return False
        return True


class _Asked:
    """A health check that has arrived: its size, and whether it is the connection's last."""

    __slots__ = ("last", "size")

    def __init__(self, size: int, last: bool) -> None:
        self.size = size
        self.last = last


def _health(data: bytes) -> _Asked | None:
    """Return the health check that waits to be read, or `None` for anything else."""
    if not data.startswith(b"GET /health HTTP/1.1\r\n") or not data.endswith(b"\r\n\r\n"):
        return None
    last = False
    for line in data[:-4].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        value = value.strip().lower()
        if name.lower() not in _PLAIN:
            return None
        if name.lower() == b"connection":
            if value not in (b"close", b"keep-alive"):
                return None
            last = value == b"close"
    return _Asked(len(data), last)


def _reply(name: str, asked: _Asked) -> bytes:
    body = f'{{"status": "ok", "service": "{name}"}}\n'
    head = [
        "HTTP/1.1 200 OK",
        "Server: clawsbench ",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        "Content-Type: application/json",
        "Cache-Control: no-store",
        f"Content-Length: {len(body)}",
        *(["Connection: close"] if asked.last else []),
    ]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()
