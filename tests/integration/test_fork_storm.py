"""Live forks, eight children each, of a box whose service never stops writing.

CI makes twelve. `BENCHFLOW_STORM=50 pytest -m slow tests/integration/test_fork_storm.py`
makes fifty.
"""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Process, Sandbox, SandboxImage, SandboxSpec, SnapshotError
from benchflow_sandbox_local import LocalProvider

FORKS = int(os.environ.get("BENCHFLOW_STORM", "12"))
CHILDREN = 8
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 30 * FORKS)]

# Each transaction moves one coin and writes down by whom: one for ever, one per request.
SERVICE = """
import itertools, json, sqlite3, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def connect():
    conn = sqlite3.connect("/workspace/bank.db", timeout=120, isolation_level=None)
    conn.execute("PRAGMA journal_mode = wal").fetchall()
    return conn

first = connect()
first.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT, who TEXT, kind TEXT)")
first.execute("CREATE TABLE account (name TEXT PRIMARY KEY, money INTEGER)")
first.execute("INSERT INTO account VALUES ('a', 0), ('b', 0)")
who, moved, changed = "root", 0, threading.Condition()

def move(conn, who, kind):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE account SET money = money - 1 WHERE name = 'a'")
    conn.execute("INSERT INTO log (who, kind) VALUES (?, ?)", (who, kind))
    conn.execute("UPDATE account SET money = money + 1 WHERE name = 'b'")
    conn.execute("COMMIT")

def busy():
    global moved
    conn = connect()
    while True:
        # Nobody is renamed between the choice of the name and its row.
        with changed:
            move(conn, who, "busy")
            moved += 1
            changed.notify_all()
        time.sleep(0.002)

def rename(name):
    global who
    with changed:
        who = name
        move(first, name, "asked")
        seen = moved
        assert changed.wait_for(lambda: moved >= seen + 3, 120), "the writer stands still"
    return {}

def report(_):
    with changed:
        conn = connect()
        rows = conn.execute("SELECT who, kind FROM log ORDER BY seq").fetchall()
        (last,) = conn.execute("SELECT max(seq) FROM log").fetchone()
        verdict = conn.execute("PRAGMA integrity_check").fetchall()
        money = dict(conn.execute("SELECT name, money FROM account"))
        remembered = moved
        conn.close()
    return {
        "integrity": verdict,
        "names": [name for name, _ in itertools.groupby(name for name, _ in rows)],
        "asked": [name for name, kind in rows if kind == "asked"],
        "rows": len(rows), "last": last, "money": money,
        "busy": sum(kind == "busy" for _, kind in rows), "remembered": remembered,
    }

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        _, action, name = self.path.split("/")
        body = json.dumps({"name": rename, "report": report}[action](name)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 9001), Handler)
first.close()
first = sqlite3.connect("/workspace/bank.db", timeout=120, isolation_level=None,
                        check_same_thread=False)
threading.Thread(target=busy, daemon=True).start()
print("up", flush=True)
server.serve_forever()
"""


async def get(box: Sandbox, path: str) -> Any:
    """Ask the service of `box` through its address on the host."""
    address = await box.expose_port(9001)
    async with asyncio.timeout(180):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], answer
    return json.loads(body)


async def sealed(box: Sandbox) -> SandboxImage:
    """Take a live snapshot, again where the box was only busy: as the kernel does."""
    async with asyncio.timeout(180):
        while True:
            try:
                return await box.snapshot("live")
            except SnapshotError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.05)


@dataclass
class Traces:
    """By what each box can be found on the host, as long as anything of it is there."""

    ids: set[str] = field(default_factory=set)
    namespaces: dict[str, set[str]] = field(default_factory=dict)
    """Those of the living boxes; the kernel gives the number of a dead one again."""

    async def note(self, box: Sandbox) -> None:
        self.ids.add(box.id)
        done = await box.exec("for n in mnt net pid ipc uts; do readlink /proc/self/ns/$n; done")
        found = set(done.stdout.split())
        assert len(found) == 5, done
        assert not found & set().union(*self.namespaces.values()), "two boxes share a namespace"
        self.namespaces[box.id] = found

    def left(self) -> list[str]:
        """What of the boxes is still there: processes and groups."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            found += [f"{path}: {line}" for line in lines(path) if self._names(line)]
        groups = (path for path, _, _ in os.walk("/sys/fs/cgroup"))
        return found + [path for path in groups if self._names(path)]

    def _names(self, text: str) -> bool:
        return any(name in text for name in self.ids)


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


STANDBY = "mnt/standby/"


@dataclass
class Held:
    """What the processes of one provider hold: a namespace needs one of these to live."""

    files: list[str]
    mounts: list[str]
    fds: list[str]

    @classmethod
    def by(cls, process: Path, store: Path) -> "Held":
        mounts = [line.split()[4] for line in lines(process / "mountinfo") if str(store) in line]
        found = sorted(below(process / "root" / str(store)[1:]))
        files = [name for name in found if not name.startswith(STANDBY)]
        # An engine that waits for a box, of which there are more and less, is two descriptors.
        waiting = {name.split("/")[2] for name in found if name.startswith(STANDBY)}
        fds = Counter(open_files(process))
        fds -= Counter({"net:[]": len(waiting), "socket:[]": len(waiting)})
        return cls(files, sorted(mounts), sorted(fds.elements()))


def held(store: Path) -> dict[str, Held]:
    """Return what this process and each one that mounts something in the store hold."""
    found = {"runner": Held.by(Path("/proc/self"), store)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if any(str(store) in line for line in lines(process / "mountinfo")):
                found[process.name] = Held.by(process, store)
    return found


def open_files(process: Path) -> Iterable[str]:
    """Yield what is open, without the numbers; the listing's own descriptor is gone by then."""
    for fd in list((process / "fd").iterdir()):
        with suppress(OSError):
            yield re.sub(r"\d+", "", str(fd.readlink()))


def below(top: Path) -> Iterable[str]:
    for directory, folders, names in os.walk(top):
        for name in (*folders, *names):
            yield str(Path(directory, name).relative_to(top))


class Storm:
    """One parent that is forked again and again."""

    def __init__(self, provider: LocalProvider) -> None:
        self.provider = provider
        self.traces = Traces()
        self.parent: Sandbox
        self.service: Process
        self.names = ["root"]

    async def start(self) -> None:
        self.parent = await self.provider.create(SandboxSpec())
        await self.traces.note(self.parent)
        self.service = await self.parent.spawn(["python3", "-I", "-c", SERVICE], cwd="/workspace")
        async with asyncio.timeout(120):
            assert await self.service.stdout.read() == b"up\n"

    async def fork(self, number: int, children: int) -> None:
        """Fork the parent; look at each child, and at the parent after them."""
        image = await sealed(self.parent)
        inherited = list(self.names)
        async with asyncio.TaskGroup() as group:
            for child in range(children):
                group.create_task(self._live(image, inherited, f"{number}.{child}"))
            group.create_task(self._go_on(f"{number}"))
        await self.provider.discard(image)

    async def _live(self, image: SandboxImage, inherited: list[str], name: str) -> None:
        box = await self.provider.create(SandboxSpec(), image=image)
        await self.traces.note(box)
        service = await box.attach(self.service.id)
        await get(box, f"/name/{name}")
        check(await get(box, "/report/"), [*inherited, name])
        await service.aclose()
        await box.teardown()
        del self.traces.namespaces[box.id]

    async def _go_on(self, name: str) -> None:
        await get(self.parent, f"/name/{name}")
        self.names.append(name)
        check(await get(self.parent, "/report/"), self.names)


def check(report: Any, names: list[str]) -> None:
    """Nothing is torn, nothing lost, and nobody else has written."""
    assert report["integrity"] == [["ok"]]
    assert report["names"] == names
    assert report["asked"] == names[1:]
    assert report["rows"] == report["last"]
    assert report["money"] == {"a": -report["rows"], "b": report["rows"]}
    assert report["remembered"] == report["busy"]


async def steady(store: Path) -> dict[str, Held]:
    """Return what is held when nothing of it is just being made."""
    async with asyncio.timeout(60):
        while (found := held(store)) != held(store):  # noqa: ASYNC110 - as in `settle`
            await asyncio.sleep(0.05)
    return found


async def settle(what: Callable[[], Any], wanted: Any) -> None:
    """Wait until `what()` is `wanted`: the kernel takes its time with the dead."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while what() != wanted:  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(0.05)
    found = what()
    assert found == wanted


@pytest.mark.usefixtures("root", "criu")
def test_a_storm_of_live_forks_tears_mixes_and_leaves_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"

    async def main() -> None:
        async with LocalProvider(store=store) as provider:
            idle = await provider.create(SandboxSpec())
            # The engine keeps what it learns of the kernel, once.
            first = await provider.create(SandboxSpec())
            await provider.discard(await first.snapshot("live"))
            await first.teardown()
            storm = Storm(provider)
            at_rest = await steady(store)
            await storm.start()
            for number in range(FORKS):
                await storm.fork(number, CHILDREN)
            assert len(storm.traces.ids) == 1 + FORKS * CHILDREN
            await storm.service.aclose()
            await storm.parent.teardown()
            await settle(storm.traces.left, [])
            await settle(lambda: held(store), at_rest)
            assert [box.id async for box in provider.sandboxes()] == [idle.id]
            await idle.teardown()
        await settle(lambda: list(held(store)), ["runner"])
        assert [path for path in store.rglob("*") if not path.is_dir()] == []

    asyncio.run(main())
