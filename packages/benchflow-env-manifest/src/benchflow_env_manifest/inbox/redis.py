"""Read, hold, copy and restore a Redis server over its own protocol.

Runs inside the sandbox as root; `main` reads one JSON argument and prints one JSON line.
Standard library only: no client has to be installed.
"""

import json
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

Reply = Any
"""Bytes, a number, nothing, or a list of them."""

_BATCH = 200
_PAUSE_MS = 60_000
# A checkpoint's children are held until they are let go, however late that is.
_CHECKPOINT_PAUSE_MS = 100 * 365 * 24 * 3600 * 1000


class Client:
    """One connection. A reply that is an error is raised."""

    def __init__(self, port: int, password: str, timeout: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._input = self._socket.makefile("rb")
        if password:
            self.call("AUTH", password)

    def call(self, *words: str | bytes | int) -> Reply:
        """Send one command and return its reply."""
        (reply,) = self.calls([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply]:
        """Send many at once; errors are among the replies."""
        self._socket.sendall(b"".join(map(_encoded, commands)))
        return [self._reply() for _ in commands]

    def _reply(self) -> Reply:
        line = self._input.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RuntimeError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._input.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        return rest


def _encoded(words: Sequence[str | bytes | int]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def databases(client: Client) -> list[int]:
    """Return the numbers of the databases that hold keys."""
    lines = client.call("INFO", "keyspace").decode().splitlines()
    return [int(line[2 : line.index(":")]) for line in lines if line.startswith("db")]


def keys(client: Client, number: int) -> list[bytes]:
    """Return every key of a database, sorted."""
    client.call("SELECT", number)
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, batch = client.call("SCAN", cursor, "COUNT", 1000)
        found.update(batch)
        if cursor == b"0":
            return sorted(found)


_READ: Mapping[str, tuple[str, Sequence[str | int]]] = {
    "string": ("GET", ()),
    "list": ("LRANGE", (0, -1)),
    "set": ("SMEMBERS", ()),
    "zset": ("ZRANGE", (0, -1, "WITHSCORES")),
    "hash": ("HGETALL", ()),
    "stream": ("XRANGE", ("-", "+")),
}


def _question(kind: str, key: bytes) -> Sequence[str | bytes | int]:
    command, rest = _READ.get(kind, ("DUMP", ()))
    return (command, key, *rest)


def rows(client: Client, number: int) -> Iterator[list[Reply]]:
    """Yield (key, type, value as JSON, expiry in ms) of every key, in key order."""
    names = keys(client, number)
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        kinds = [kind.decode() for kind in client.calls([("TYPE", key) for key in batch])]
        ask = [_question(kind, key) for kind, key in zip(kinds, batch, strict=True)]
        values = client.calls(ask)
        expiries = client.calls([("PEXPIRETIME", key) for key in batch])
        for key, kind, value, at in zip(batch, kinds, values, expiries, strict=True):
            if kind != "none" and not isinstance(value, Exception):
                expires = at if isinstance(at, int) and at >= 0 else None
                yield [_text(key), kind, json.dumps(_plain(kind, value)), expires]


def _plain(kind: str, value: Reply) -> Reply:
    if kind == "set":
        return sorted(map(_text, value))
    if kind == "hash":
        pairs = sorted(zip(value[::2], value[1::2], strict=True))
        return {_text(name): _text(held) for name, held in pairs}
    return _nested(value)


def _nested(value: Reply) -> Reply:
    if not isinstance(value, list):
        return _text(value)
    return [_nested(each) for each in cast("list[object]", value)]


def _text(value: Reply) -> Reply:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def read(client: Client, target: str) -> None:
    """Write every database as JSON lines."""
    with Path(target).open("w", encoding="utf-8") as out:
        for number in databases(client):
            head = {"table": f"db{number}", "columns": ["key", "type", "value", "expires_at_ms"]}
            out.write(json.dumps({**head, "key": ["key"]}) + "\n")
            for row in rows(client, number):
                out.write(json.dumps(row) + "\n")


def hold(client: Client, *, persist: bool, deadline: float) -> None:
    """Let writers wait; with `persist`, put on disk what is only in memory."""
    client.call("CLIENT", "PAUSE", _CHECKPOINT_PAUSE_MS if persist else _PAUSE_MS, "WRITE")
    if not persist:
        return
    try:
        _persist(client, deadline)
    except BaseException:
        client.call("CLIENT", "UNPAUSE")
        raise


def _persist(client: Client, deadline: float) -> None:
    while time.monotonic() < deadline:
        info = client.call("INFO", "persistence").decode()
        facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        if facts.get("aof_enabled") == "1":
            if facts.get("aof_buffer_length") == "0":
                return
        elif facts.get("rdb_bgsave_in_progress") == "0":
            client.call("SAVE")
            return
        time.sleep(0.02)
    raise TimeoutError("the server did not come to rest")


def capture(client: Client, target: str) -> None:
    """Write every key as the server serialises it, with its expiry, and all functions."""
    with Path(target).open("wb") as out:
        functions = client.calls([("FUNCTION", "DUMP")])[0]
        _put(out, functions if isinstance(functions, bytes) else b"")
        for number in databases(client):
            names = keys(client, number)
            for start in range(0, len(names), _BATCH):
                batch = names[start : start + _BATCH]
                dumps = client.calls([("DUMP", key) for key in batch])
                expiries = client.calls([("PEXPIRETIME", key) for key in batch])
                for key, dump, at in zip(batch, dumps, expiries, strict=True):
                    if isinstance(dump, bytes):
                        expires = at if isinstance(at, int) and at >= 0 else 0
                        for part in (b"%d" % number, key, b"%d" % expires, dump):
                            _put(out, part)


def _put(out: BinaryIO, data: bytes) -> None:
    out.write(struct.pack(">I", len(data)) + data)


def _parts(source: str) -> Iterator[bytes]:
    with Path(source).open("rb") as file:
        while head := file.read(4):
            yield file.read(struct.unpack(">I", head)[0])


def restore(client: Client, source: str) -> None:
    """Replace everything in one transaction: all of it, or nothing."""
    parts = _parts(source)
    functions = next(parts)
    queued: list[Sequence[str | bytes | int]] = [("FLUSHALL", "SYNC")]
    if functions:
        queued.append(("FUNCTION", "RESTORE", functions, "FLUSH"))
    for number, key, expires, dump in zip(parts, parts, parts, parts, strict=True):
        queued.append(("SELECT", number))
        queued.append(("RESTORE", key, expires, dump, "ABSTTL"))
    # A command that the server refuses to queue makes EXEC fail as a whole.
    client.call("MULTI")
    for start in range(0, len(queued), _BATCH):
        client.calls(queued[start : start + _BATCH])
    for reply in client.call("EXEC"):
        if isinstance(reply, Exception):
            raise reply


def main() -> None:
    """Run the request in the first argument; print its result as JSON."""
    request = json.loads(sys.argv[1])
    deadline = time.monotonic() + request["timeout"]
    answer: dict[str, str] = {}
    try:
        client = Client(request["port"], request["password"], request["timeout"])
        do, path = request["do"], request["path"]
        if do in ("hold", "persist"):
            hold(client, persist=do == "persist", deadline=deadline)
        elif do == "release":
            client.call("CLIENT", "UNPAUSE")
        elif do == "check":
            client.call("PING")
        else:
            {"read": read, "capture": capture, "restore": restore}[do](client, path)
    except (OSError, RuntimeError, ValueError) as exc:
        answer["error"] = f"{type(exc).__name__}: {exc}"
    sys.stdout.write(json.dumps(answer))
