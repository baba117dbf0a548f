"""Real services on loopback ports, over databases in a temporary directory."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[1]
BIN = HERE / "images" / "clawsbench-base" / "rootfs" / "usr" / "local" / "bin"

# The interpreter of the tests, so that the services run on every version under test.
PATH = f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}"
ENV = {**os.environ, "PATH": PATH}

MAILBOX = {
    "format": "claw-gmail/1",
    "address": "ada@office.example",
    "name": "Ada",
    "now": "2026-03-16T08:00:00Z",
    "labels": ["travel"],
    "messages": [
        {
            "id": f"msg-{n}",
            "thread": f"thr-{n}",
            "from": f"Bob <bob{n}@other.example>",
            "to": ["Ada <ada@office.example>"],
            "subject": f"Subject {n}",
            "body": f"Body {n}: 100% sure_thing",
            "date": f"2026-03-1{n}T12:00:00+00:00",
            "labels": ["inbox", "unread"] if n != 3 else ["trash"],
        }
        for n in (1, 2, 3)
    ],
}

CALENDAR = {
    "format": "claw-gcal/1",
    "address": "ada@office.example",
    "name": "Ada",
    "now": "2026-03-16T09:00:00+01:00",
    "timezone": "Europe/Berlin",
    "calendars": [
        {"id": "cal-1", "name": "Ada", "kind": "person", "owner": "ada@office.example"},
        {"id": "cal-2", "name": "Bob", "kind": "person", "owner": "bob@office.example"},
        {"id": "cal-3", "name": "Oak", "kind": "room", "owner": "room-oak@office.example"},
    ],
    "events": [
        {
            "id": "evt-1",
            "calendar": "cal-2",
            "title": "Bob's call",
            "start": "2026-03-17T10:00:00+01:00",
            "end": "2026-03-17T11:00:00+01:00",
            "attendees": {"ada@office.example": "needs_action"},
        },
        {
            "id": "evt-2",
            "calendar": "cal-1",
            "title": "Walk",
            "start": "2026-03-17T15:00:00Z",
            "end": "2026-03-17T16:00:00Z",
        },
    ],
}


class Service:
    """One running service; `request` keeps one connection per object."""

    def __init__(self, command: str, database: Path, *flags: str) -> None:
        self.command = command
        self.database = database
        words = ["--db", str(database), "serve", "--host", "127.0.0.1", "--port", "0"]
        self.process = subprocess.Popen(
            [BIN / command, *words, *flags],
            stdout=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self._connection = HTTPConnection("127.0.0.1", self.port, timeout=30)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, path, raw, headers or {})
        reply = self._connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None

    def get(self, path: str) -> Any:
        status, reply = self.request("GET", path)
        assert status == 200, reply
        return reply

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        status, reply = self.request(method, path, body)
        return status, reply["error"]["code"]

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [BIN / self.command, "--url", self.url, *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self._connection.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def seed(command: str, database: Path, file: Path) -> subprocess.CompletedProcess[str]:
    args = [BIN / command, "--db", database, "seed", file]
    return subprocess.run(args, capture_output=True, text=True, check=False, env=ENV)


@pytest.fixture
def start() -> Iterator[Callable[..., Service]]:
    """Start services; all are stopped in the end."""
    running: list[Service] = []

    def begin(command: str, database: Path, *flags: str) -> Service:
        running.append(Service(command, database, *flags))
        return running[-1]

    yield begin
    for service in running:
        service.stop()


def _seeded(command: str, world: Any, folder: Path) -> Path:
    file, database = folder / "seed.json", folder / "world.db"
    file.write_text(json.dumps(world))
    done = seed(command, database, file)
    assert done.returncode == 0, done.stderr
    return database


@pytest.fixture
def mail(tmp_path: Path, start: Callable[..., Service]) -> Service:
    return start("claw-gmail", _seeded("claw-gmail", MAILBOX, tmp_path))


@pytest.fixture(scope="session")
def still_mail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Give the mailbox, without MCP, to tests that change nothing; started once."""
    database = _seeded("claw-gmail", MAILBOX, tmp_path_factory.mktemp("mail"))
    service = Service("claw-gmail", database, "--no-mcp")
    yield service
    service.stop()


@pytest.fixture(scope="session")
def still_calendar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Give the calendar to tests that change nothing; started once."""
    database = _seeded("claw-gcal", CALENDAR, tmp_path_factory.mktemp("calendar"))
    service = Service("claw-gcal", database, "--no-mcp")
    yield service
    service.stop()


@pytest.fixture
def mailbox() -> dict[str, Any]:
    """Return a seed."""
    return dict(MAILBOX)


@pytest.fixture
def seeding() -> Callable[[str, Path, Path], subprocess.CompletedProcess[str]]:
    """Return the seed command."""
    return seed


@pytest.fixture
def calendar(tmp_path: Path, start: Callable[..., Service]) -> Service:
    return start("claw-gcal", _seeded("claw-gcal", CALENDAR, tmp_path))


@pytest.fixture(scope="session")
def sync() -> ModuleType:
    """The module that derives files for the tasks."""
    sys.path.insert(0, str(HERE))
    try:
        import sync  # noqa: PLC0415
    finally:
        sys.path.remove(str(HERE))
    return sync


class Office:
    """A task's world, run as the box runs it, but for the box itself."""

    def __init__(self, task: str, folder: Path, dump: Any) -> None:
        self.task = HERE / "tasks" / task
        self.folder = folder
        self.dump = dump
        self.env = {"PATH": PATH}
        self.databases: dict[str, Path] = {}
        self.services: list[Service] = []
        for command, name in (("claw-gmail", "gmail"), ("claw-gcal", "gcal")):
            database = folder / f"{name}.db"
            file = self.task / "environment" / "files" / "data" / "seed" / f"{name}.json"
            assert seed(command, database, file).returncode == 0
            shutil.copy(database, folder / f"{name}.seeded")
            service = Service(command, database, "--no-mcp")
            self.services.append(service)
            self.env[command.upper().replace("-", "_") + "_URL"] = service.url
            self.databases[f"/data/{name}.db"] = database

    def reset(self, folder: Path) -> None:
        """Roll both databases back below the running services; grade in `folder`."""
        self.folder = folder
        for database in self.databases.values():
            seeded = sqlite3.connect(database.with_suffix(".seeded"))
            live = sqlite3.connect(database)
            seeded.backup(live)
            seeded.close()
            live.close()

    def run(self, script: str) -> None:
        """Run a shell script as an agent would."""
        subprocess.run(["sh", "-euc", script], env=self.env, check=True, capture_output=True)

    def evidence(self) -> dict[str, Any]:
        """Return the state as the environment's query has it."""
        state = {path: self.dump(file) for path, file in self.databases.items()}
        return {"databases": state, "files": {}}

    def grade(self, steps: list[Any] | None = None, state: Any = None) -> dict[str, Any]:
        """Run the task's own tests over the evidence; return the verdict."""
        evidence, verdict = self.folder / "evidence", self.folder / "verdict"
        evidence.mkdir()
        (evidence / "env_state.json").write_text(json.dumps(state or self.evidence()))
        lines = "".join(json.dumps(step) + "\n" for step in steps or [{"id": "s1"}])
        (evidence / "steps.jsonl").write_text(lines)
        env = {"PATH": PATH, "CLAWS_EVIDENCE": str(evidence), "CLAWS_VERDICT": str(verdict)}
        subprocess.run(["sh", self.task / "tests" / "test.sh"], env=env, check=True)
        return json.loads((verdict / "reward.json").read_text())


@pytest.fixture(scope="session")
def offices(
    tmp_path_factory: pytest.TempPathFactory, sync: ModuleType
) -> Iterator[Callable[[str], Office]]:
    """The worlds of all tasks, each started once."""
    running: dict[str, Office] = {}

    def find(task: str) -> Office:
        if task not in running:
            running[task] = Office(task, tmp_path_factory.mktemp(task), sync.dump)
        return running[task]

    yield find
    for office in running.values():
        for service in office.services:
            service.stop()


@pytest.fixture
def office(offices: Callable[[str], Office], tmp_path: Path) -> Callable[[str], Office]:
    """Give a task's world as its seed left it."""

    def find(task: str) -> Office:
        found = offices(task)
        found.reset(tmp_path)
        return found

    return find


@pytest.fixture
def rows() -> Callable[[Path, str], list[Any]]:
    def query(database: Path, sql: str) -> list[Any]:
        db = sqlite3.connect(database)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    return query
