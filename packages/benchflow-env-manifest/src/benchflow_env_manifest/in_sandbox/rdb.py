"""Stream the server's own data file out of it and into it, as between two Redis servers.

Runs inside the sandbox as root. Standard library only.
"""

import contextlib
import os
import socket
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from .resp import Client, Wire

_CHUNK = 1 << 20
_MARK = 40
_PAUSE_SEC = 0.005


def can_stream(client: Client) -> bool:
    """Return whether this server has no replicas and can load a file beside its old data."""
    server, peers = client.info("server"), client.info("replication")
    major = server.get("redis_version", "0").split(".")[0]
    alone = peers.get("role") == "master" and peers.get("connected_slaves") == "0"
    return int(major) >= 7 and server.get("redis_mode") == "standalone" and alone


def save(client: Client, link: Client, target: str) -> None:
    """Write the present data to `target`, as a replica on `link` gets it."""
    settings = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}
    with _configured(client, settings), contextlib.closing(link), Path(target).open("wb") as out:
        link.call("REPLCONF", "capa", "eof", "rdb-only", "1")
        link.send(b"SYNC\r\n")
        while not (head := link.read_line()):
            pass  # an empty line keeps the connection open
        if not head.startswith(b"$EOF:"):
            raise RuntimeError(f"the server did not stream its data: {head[:200]!r}")
        mark, tail = head[5:], b""
        while tail != mark:
            # The mark follows the file and is not part of it.
            data = tail + link.read_some(_CHUNK)
            out.write(data[:-_MARK])
            tail = data[-_MARK:]


def load(client: Client, source: str, deadline: float) -> None:
    """Replace all data by a file: the server becomes a replica of this program and loads it.

    Writers wait meanwhile; readers see the old data until the file is loaded. Clients in a
    blocking command have to connect again.
    """
    settings = {"repl-diskless-load": "swapdb", "replica-read-only": "no"}
    settings |= {"replica-serve-stale-data": "yes", "masterauth": ""}
    with socket.create_server(("127.0.0.1", 0)) as listener, _configured(client, settings):
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        client.call("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            client.call("REPLICAOF", "127.0.0.1", listener.getsockname()[1])
            try:
                _feed(client, listener, source, deadline)
            finally:
                client.call("REPLICAOF", "NO", "ONE")
            _settle(client, deadline)
        finally:
            client.call("CLIENT", "UNPAUSE")


def _feed(client: Client, listener: socket.socket, source: str, deadline: float) -> None:
    """Act as the master of the server until it has loaded `source`."""
    connection, _ = listener.accept()
    connection.settimeout(max(0.1, deadline - time.monotonic()))
    with contextlib.closing(Wire(connection)) as replica, Path(source).open("rb") as file:
        while True:
            command, *words = replica.read_value()
            if command.upper() == b"PSYNC":
                break
            replica.send(b"+PONG\r\n" if command.upper() == b"PING" else b"+OK\r\n")
        # With the name of its own history it still answers readers while it loads.
        replica.send(b"+FULLRESYNC %s 0\r\n$%d\r\n" % (words[0], os.fstat(file.fileno()).st_size))
        while data := file.read(_CHUNK):
            replica.send(data)
        while client.info("replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not load its data")
            time.sleep(_PAUSE_SEC)


def _settle(client: Client, deadline: float) -> None:
    """Wait until the append-only file, if there is one, contains the loaded data."""
    while True:
        facts = client.info("persistence")
        if facts.get("aof_rewrite_in_progress") == facts.get("aof_rewrite_scheduled") == "0":
            return
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not write its append-only file")
        time.sleep(_PAUSE_SEC)


@contextlib.contextmanager
def _configured(client: Client, settings: Mapping[str, str]) -> Generator[None, None, None]:
    """Change settings of the server until the exit."""
    before = {name: client.call("CONFIG", "GET", name)[1] for name in settings}
    try:
        for name, value in settings.items():
            client.call("CONFIG", "SET", name, value)
        yield
    finally:
        for name, value in before.items():
            client.call("CONFIG", "SET", name, value)
