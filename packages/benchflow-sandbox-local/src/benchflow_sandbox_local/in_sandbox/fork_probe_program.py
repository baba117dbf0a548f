"""The program that the fork probe forks: it holds one of each thing that must survive.

It runs inside a sandbox, by whatever Python 3.9 or newer is there, alone in this file. Each line
that it reads is a note; it looks at everything that it holds, leaves the note in memory and
in a file, and answers with one line of JSON. A second look needs no fork in between.
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

PATIENCE = 30.0
"""Seconds until something that does not come is given up."""

HELD = b"held over the fork"
IO_URING_SETUP, LANDLOCK_CREATE_RULESET, ENOSYS = 425, 444, 38
IN_CREATE, INOTIFY_EVENT = 0x100, struct.Struct("iIII")

MANY = "many "
"""Before a number, instead of a note: how many files to make, to be a sandbox that has many."""

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
    """Something did not survive. Other failures may not happen again."""


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `Lost` unless `found` equals `wanted`."""
    if found != wanted:
        raise Lost(f"{what}: {found!r} instead of {wanted!r}")


class Pipe:
    """Bytes that nobody has read yet."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.write(self._write, HELD)

    def check(self) -> None:
        """Read them, and leave new ones."""
        expect(os.read(self._read, 100), HELD, "bytes in a pipe")
        os.write(self._write, HELD)


class Connection:
    """A loopback connection with bytes on the way, watched by epoll."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._near = socket.create_connection(server.getsockname(), timeout=PATIENCE)
            self._far, _ = server.accept()
        self._far.settimeout(PATIENCE)
        self._epoll = select.epoll()
        self._epoll.register(self._far, select.EPOLLIN)
        self._near.sendall(HELD)

    def check(self) -> None:
        """Receive them, and send something both ways."""
        expect(len(self._epoll.poll(PATIENCE)), 1, "epoll events")
        expect(self._far.recv(100), HELD, "bytes on a connection")
        self._far.sendall(b"back")
        expect(self._near.recv(100), b"back", "an answer on a connection")
        self._near.sendall(HELD)


class Thread:
    """A thread that waits for work."""

    def __init__(self) -> None:
        self._asked: queue.Queue[int] = queue.Queue()
        self._told: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._told.put(self._asked.get() + 1)

    def check(self) -> None:
        """Give it something to do."""
        self._asked.put(41)
        try:
            expect(self._told.get(timeout=PATIENCE), 42, "a thread's answer")
        except queue.Empty:
            raise TimeoutError("a thread does not answer") from None


class Process:
    """A child process, behind a socket pair, and a file lock that it has to respect."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w")
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        near, far = socket.socketpair()
        near.settimeout(PATIENCE)
        command = [sys.executable, "-I", "-c", LOCK_CHILD]
        self._child = subprocess.Popen(command, stdin=far.fileno(), stdout=far.fileno())
        far.close()
        self._near, self._path = near, path
        self._makers = self._maker()

    def _maker(self) -> bytes:
        """Return the user and the group who made the socket pair, as the kernel tells them."""
        return self._near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:]

    def check(self) -> None:
        """Let the child try the lock that is held here."""
        expect(self._maker(), self._makers, "who made a unix socket")
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
        """Make a file and wait for its event."""
        self._count += 1
        name = f"new-{self._count}"
        (self._directory / name).touch()
        if not select.select([self._fd], [], [], PATIENCE)[0]:
            raise TimeoutError("inotify told nothing")
        event = os.read(self._fd, 4096)
        expect(event[INOTIFY_EVENT.size :].rstrip(b"\0"), name.encode(), "an inotify event")


class Deleted:
    """A file that is open and has no name."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._file.write(HELD)
        path.unlink()

    def check(self) -> None:
        """Read it, and write it anew."""
        self._file.seek(0)
        expect(self._file.read(100), HELD, "a deleted file's bytes")
        self._file.seek(0)
        self._file.write(HELD)


class Numbers:
    """Files that are known by their device and inode number."""

    def __init__(self, *paths: Path) -> None:
        paths[0].write_bytes(HELD)
        self._file = paths[0].open("r+b", buffering=0)
        self._known = {path: self._number(path.stat()) for path in paths}

    @staticmethod
    def _number(info: os.stat_result) -> tuple[int, int]:
        return info.st_dev, info.st_ino

    def check(self) -> None:
        """Compare, by name and by descriptor, before and after a write."""
        for _ in range(2):
            for path, known in self._known.items():
                expect(self._number(path.stat()), known, f"the identity of {path}")
            mine = self._number(os.fstat(self._file.fileno()))
            expect(mine, next(iter(self._known.values())), "the identity of an open file")
            self._file.write(HELD)


class Database:
    """A SQLite connection that holds the write lock."""

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


class Absent:
    """A system call that must not exist in a sandbox."""

    def __init__(self, libc: ctypes.CDLL, number: int, *arguments: object) -> None:
        self._libc, self._number, self._arguments = libc, number, arguments

    def check(self) -> None:
        """Call it."""
        answer = self._libc.syscall(self._number, *self._arguments)
        expect((answer, ctypes.get_errno()), (-1, ENOSYS), "the answer of a refused call")


class Model:
    """The one outside address; a port of 0 stands for none."""

    def __init__(self, port: int) -> None:
        self._port = port

    def check(self) -> None:
        """Ask it for something."""
        if not self._port:
            return
        answer = b""
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: model\r\nConnection: close\r\n\r\n")
            while data := peer.recv(4096):
                answer += data
        expect(answer.split(b" ")[1:2], [b"200"], "the model endpoint's answer")


def parts(directory: Path, port: int, without: Sequence[str] = ()) -> dict[str, Callable[[], None]]:
    """Make everything; return how to look at each. Some may be left out."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    room = ctypes.create_string_buffer(256)
    make: dict[str, Callable[[], Callable[[], None]]] = {
        "pipe": lambda: Pipe().check,
        "connection": lambda: Connection().check,
        "thread": lambda: Thread().check,
        "process": lambda: Process(directory / "locked").check,
        "inotify": lambda: Watch(directory / "watched", libc).check,
        "deleted file": lambda: Deleted(directory / "deleted").check,
        "file identity": lambda: Numbers(directory / "known", Path("/etc/hostname")).check,
        "sqlite": lambda: Database(directory / "journal.db", "delete").check,
        "sqlite wal": lambda: Database(directory / "wal.db", "wal").check,
        "io_uring": lambda: Absent(libc, IO_URING_SETUP, 1, room).check,
        "landlock": lambda: Absent(libc, LANDLOCK_CREATE_RULESET, None, 0, 1).check,
        "model endpoint": lambda: Model(port).check,
    }
    return {name: part() for name, part in make.items() if name not in without}


def look(checks: dict[str, Callable[[], None]]) -> dict[str, dict[str, str]]:
    """Return what is `lost` and what could not be found out, and how that shows."""
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
    """Make files."""
    directory.mkdir()
    for number in range(count):
        (directory / str(number)).touch()


def tell(message: dict[str, object]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the end of the input.

    `argv[1]` is a directory, `argv[2]` the model's port, and more are parts to leave out.
    """
    directory = Path(sys.argv[1])
    directory.mkdir()
    checks = parts(directory, int(sys.argv[2]), sys.argv[3:])
    notes: list[str] = []
    tell({"ready": True})
    for line in sys.stdin:
        note = line.strip()
        if note.startswith(MANY):
            fill(directory / "many", int(note[len(MANY) :]))
            tell({"filled": True})
            continue
        found = look(checks)
        notes.append(note)
        (directory / f"note-{note}").touch()
        files = sorted(path.name[5:] for path in directory.glob("note-*"))
        tell({**found, "notes": notes, "files": files})


if __name__ == "__main__":
    main()
