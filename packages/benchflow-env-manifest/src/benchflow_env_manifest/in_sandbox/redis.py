"""Read, pause, copy and restore a Redis server over its own protocol.

Runs inside the sandbox as root; `main` reads one JSON argument and prints one JSON line.
Standard library only: the image does not need a client.
"""

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from .rdb import can_stream, load, save
from .resp import Client, Reply

_BATCH = 200
_PAUSE_MS = 60_000
# The children of a checkpoint stay paused until they are released, which may be much later.
_CHECKPOINT_PAUSE_MS = 100 * 365 * 24 * 3600 * 1000
_FEW = 1000
_KEYS, _RDB = "keys", "dump.rdb"

Link = Callable[[], Client]
"""Opens another connection."""


def databases(client: Client) -> list[int]:
    """Return the numbers of the databases that have keys."""
    return [int(name.removeprefix("db")) for name in client.info("keyspace")]


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
        return {_text(name): _text(item) for name, item in pairs}
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
    """Make writers wait; with `persist`, write the data in memory to disk."""
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
        facts = client.info("persistence")
        if facts.get("aof_enabled") == "1":
            if facts.get("aof_buffer_length") == "0":
                return
        elif facts.get("rdb_bgsave_in_progress") == "0":
            client.call("SAVE")
            return
        time.sleep(0.02)
    raise TimeoutError("the server did not become idle")


def capture(client: Client, directory: str, link: Link) -> None:
    """Copy all data: key by key if there are few keys, else as the server's own file."""
    total = sum(int(facts.split(",")[0][5:]) for facts in client.info("keyspace").values())
    if total > _FEW and can_stream(client):
        save(client, link(), f"{directory}/{_RDB}")
    else:
        write_keys(client, f"{directory}/{_KEYS}")


def restore(client: Client, directory: str, deadline: float) -> None:
    """Replace all data by the files of `capture`."""
    if Path(f"{directory}/{_RDB}").exists():
        load(client, f"{directory}/{_RDB}", deadline)
    else:
        put_keys(client, f"{directory}/{_KEYS}")


def write_keys(client: Client, target: str) -> None:
    """Write every key in the server's own format, with its expiry, and all functions."""
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


def put_keys(client: Client, source: str) -> None:
    """Replace all data in one transaction."""
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
        _do(request, deadline)
    except (OSError, RuntimeError, ValueError) as exc:
        answer["error"] = f"{type(exc).__name__}: {exc}"
    sys.stdout.write(json.dumps(answer))


def _do(request: Mapping[str, Any], deadline: float) -> None:
    link = partial(Client, request["port"], request["password"], request["timeout"])
    client, do, path = link(), request["do"], request["path"]
    if do in ("hold", "persist"):
        hold(client, persist=do == "persist", deadline=deadline)
    elif do == "release":
        client.call("CLIENT", "UNPAUSE")
    elif do == "check":
        client.call("PING")
    elif do == "read":
        read(client, path)
    elif do == "capture":
        capture(client, path, link)
    else:
        restore(client, path, deadline)
