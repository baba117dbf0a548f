"""The program that the fork probe forks: it has one object of each kind that must survive.

It runs inside a sandbox, with any Python 3.9 or newer, and needs only this file. Each input line is
a note. For each note, the program checks all of its objects, stores the note in memory and in a
file, and responds with one line of JSON. It can check again without a fork in between.
"""

import ctypes
import fcntl
import json
import os
import queue
import select
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

TIMEOUT = 30.0
"""Seconds to wait for data, an event or an answer."""

DATA = b"kept over the fork"
IO_URING_SETUP, LANDLOCK_CREATE_RULESET, ENOSYS = 425, 444, 38
IN_CREATE, INOTIFY_EVENT = 0x100, struct.Struct("iIII")

MANY = "many "
"""The start of a line with a number: create so many files. The line is not a note."""

LOCK_CHILD = """
import fcntl, sys
for line in sys.stdin:
    with open(line.strip(), "r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("refused", flush=True)
        else:
            print("admitted", flush=True)
"""


class Lost(Exception):  # noqa: N818 - a finding, not an error
    """An object did not survive. Another failure may not happen again."""


def expect(actual: object, expected: object, name: str) -> None:
    """Raise `Lost` unless `actual` equals `expected`."""
    if actual != expected:
        raise Lost(f"{name}: {actual!r} instead of {expected!r}")


class Pipe:
    """A pipe with unread bytes."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.write(self._write, DATA)

    def check(self) -> None:
        """Read the bytes, and write new ones."""
        expect(os.read(self._read, 100), DATA, "bytes in a pipe")
        os.write(self._write, DATA)


class Connection:
    """A loopback connection with bytes on the way, watched by epoll."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._near = socket.create_connection(server.getsockname(), timeout=TIMEOUT)
            self._far, _ = server.accept()
        self._far.settimeout(TIMEOUT)
        self._epoll = select.epoll()
        self._epoll.register(self._far, select.EPOLLIN)
        self._near.sendall(DATA)

    def check(self) -> None:
        """Receive the bytes, and send data in both directions."""
        expect(len(self._epoll.poll(TIMEOUT)), 1, "epoll events")
        expect(self._far.recv(100), DATA, "bytes on a connection")
        self._far.sendall(b"back")
        expect(self._near.recv(100), b"back", "an answer on a connection")
        self._near.sendall(DATA)


class Thread:
    """A thread that waits for work."""

    def __init__(self) -> None:
        self._requests: queue.Queue[int] = queue.Queue()
        self._answers: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._answers.put(self._requests.get() + 1)

    def check(self) -> None:
        """Send a request to the thread."""
        self._requests.put(41)
        try:
            expect(self._answers.get(timeout=TIMEOUT), 42, "a thread's answer")
        except queue.Empty:
            raise TimeoutError("a thread does not respond") from None


class Process:
    """A child process behind a socket pair, and a file lock that excludes it."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w")
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        near, far = socket.socketpair()
        near.settimeout(TIMEOUT)
        command = [sys.executable, "-I", "-c", LOCK_CHILD]
        self._child = subprocess.Popen(command, stdin=far.fileno(), stdout=far.fileno())
        far.close()
        self._near, self._path = near, path
        self._makers = self._maker()

    def _maker(self) -> bytes:
        """Return the kernel's record of the user and the group that made the socket pair."""
        return self._near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:]

    def check(self) -> None:
        """Let the child try to take the lock of this process."""
        expect(self._maker(), self._makers, "the maker of a unix socket")
        self._near.sendall(f"{self._path}\n".encode())
        expect(self._near.recv(100).strip(), b"refused", "a lock on a file")
        expect(self._child.poll(), None, "the status of a child process")


class Watch:
    """An inotify watch."""

    def __init__(self, directory: Path, libc: ctypes.CDLL) -> None:
        directory.mkdir()
        self._directory, self._count = directory, 0
        self._fd = int(libc.inotify_init1(os.O_CLOEXEC))
        if libc.inotify_add_watch(self._fd, os.fsencode(directory), IN_CREATE) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def check(self) -> None:
        """Create a file and wait for its event."""
        self._count += 1
        name = f"new-{self._count}"
        (self._directory / name).touch()
        if not select.select([self._fd], [], [], TIMEOUT)[0]:
            raise TimeoutError("inotify reports no event")
        event = os.read(self._fd, 4096)
        expect(event[INOTIFY_EVENT.size :].rstrip(b"\0"), name.encode(), "an inotify event")


class DeletedFile:
    """An open file without a name."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._file.write(DATA)
        path.unlink()

    def check(self) -> None:
        """Read the file, and write it again."""
        self._file.seek(0)
        expect(self._file.read(100), DATA, "a deleted file's bytes")
        self._file.seek(0)
        self._file.write(DATA)


class FileNumbers:
    """Files whose device and inode numbers must not change."""

    def __init__(self, *paths: Path) -> None:
        paths[0].write_bytes(DATA)
        self._file = paths[0].open("r+b", buffering=0)
        self._known = {path: self._number(path.stat()) for path in paths}

    @staticmethod
    def _number(info: os.stat_result) -> tuple[int, int]:
        return info.st_dev, info.st_ino

    def check(self) -> None:
        """Compare the numbers, by name and by descriptor, before and after a write."""
        for _ in range(2):
            for path, known in self._known.items():
                expect(self._number(path.stat()), known, f"the identity of {path}")
            number = self._number(os.fstat(self._file.fileno()))
            expect(number, next(iter(self._known.values())), "the identity of an open file")
            self._file.write(DATA)


class Database:
    """A SQLite connection that has the write lock."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path, self._mode, self._rows = path, mode, 0
        self._writer = sqlite3.connect(path, isolation_level=None)
        self._writer.execute(f"PRAGMA journal_mode={mode}")
        self._writer.execute("CREATE TABLE t (x)")
        self._begin()

    def _begin(self) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.execute("INSERT INTO t VALUES (1)")
        self._rows += 1

    def check(self) -> None:
        """Try to write through a second connection, then commit through the first."""
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as second:
            try:
                second.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                expect(str(error), "database is locked", "SQLite's refusal")
            else:
                raise Lost(f"SQLite admitted a second writer ({self._mode})")
        self._writer.execute("COMMIT")
        (rows,) = self._writer.execute("SELECT count(*) FROM t").fetchone()
        expect(rows, self._rows, f"rows ({self._mode})")
        (verdict,) = self._writer.execute("PRAGMA integrity_check").fetchone()
        expect(verdict, "ok", "SQLite's integrity check")
        self._begin()


class AbsentCall:
    """A system call that must not exist in a sandbox."""

    def __init__(self, libc: ctypes.CDLL, number: int, *arguments: object) -> None:
        self._libc, self._number, self._arguments = libc, number, arguments

    def check(self) -> None:
        """Call it; the kernel must answer ENOSYS."""
        answer = self._libc.syscall(self._number, *self._arguments)
        expect((answer, ctypes.get_errno()), (-1, ENOSYS), "the answer of a refused call")


class ModelEndpoint:
    """The only address outside; the port 0 means that there is no endpoint."""

    def __init__(self, port: int) -> None:
        self._port = port

    def check(self) -> None:
        """Send a request to the endpoint."""
        if not self._port:
            return
        answer = b""
        with socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: model\r\nConnection: close\r\n\r\n")
            while data := peer.recv(4096):
                answer += data
        expect(answer.split(b" ")[1:2], [b"200"], "the model endpoint's answer")


def create_objects(
    directory: Path, port: int, without: Sequence[str] = ()
) -> dict[str, Callable[[], None]]:
    """Create all objects except those of `without`; return the check of each, by name."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    parameters = ctypes.create_string_buffer(256)
    make: dict[str, Callable[[], Callable[[], None]]] = {
        "pipe": lambda: Pipe().check,
        "connection": lambda: Connection().check,
        "thread": lambda: Thread().check,
        "process": lambda: Process(directory / "locked").check,
        "inotify": lambda: Watch(directory / "watched", libc).check,
        "deleted file": lambda: DeletedFile(directory / "deleted").check,
        "file identity": lambda: FileNumbers(directory / "known", Path("/etc/hostname")).check,
        "sqlite": lambda: Database(directory / "journal.db", "delete").check,
        "sqlite wal": lambda: Database(directory / "wal.db", "wal").check,
        "io_uring": lambda: AbsentCall(libc, IO_URING_SETUP, 1, parameters).check,
        "landlock": lambda: AbsentCall(libc, LANDLOCK_CREATE_RULESET, None, 0, 1).check,
        "model endpoint": lambda: ModelEndpoint(port).check,
    }
    return {name: create() for name, create in make.items() if name not in without}


def run_checks(checks: dict[str, Callable[[], None]]) -> dict[str, dict[str, str]]:
    """Return the `lost` objects and the `failed` checks, each with its reason."""
    lost: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name, check in checks.items():
        try:
            check()
        except Lost as finding:
            lost[name] = str(finding)
        except (OSError, sqlite3.Error) as error:
            failed[name] = str(error) or repr(error)
    return {"lost": lost, "failed": failed}


def fill(directory: Path, count: int) -> None:
    """Create `count` files."""
    directory.mkdir()
    for number in range(count):
        (directory / str(number)).touch()


def respond(message: dict[str, object]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the end of the input.

    `argv[1]` is a new directory, `argv[2]` the model's port. The other arguments are objects that
    are not created.
    """
    directory = Path(sys.argv[1])
    directory.mkdir()
    checks = create_objects(directory, int(sys.argv[2]), sys.argv[3:])
    notes: list[str] = []
    respond({"ready": True})
    for line in sys.stdin:
        note = line.strip()
        if note.startswith(MANY):
            fill(directory / "many", int(note[len(MANY) :]))
            respond({"created": True})
            continue
        results = run_checks(checks)
        notes.append(note)
        (directory / f"note-{note}").touch()
        files = sorted(path.name[5:] for path in directory.glob("note-*"))
        respond({**results, "notes": notes, "files": files})


if __name__ == "__main__":
    main()
