"""Capture and restore SQLite databases while other processes use them.

Runs inside the sandbox as root, after the text of `tables.py`; `main` reads one JSON
argument and prints one JSON line. Standard library only.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .tables import content_digest, read_text_losslessly

# A writer may commit between a restore and its check. The time between is microseconds, so one
# of the attempts succeeds.
_ATTEMPTS = 20

_UNDO_SEC = 30


class Deadline:
    """Ends a copy that waits for a lock for too long."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end, at least 0.05."""
        return max(0.05, self._end - time.monotonic())

    def check(self, *_: object) -> None:
        """Raise `TimeoutError` after the end. Also a `progress` callback."""
        if time.monotonic() > self._end:
            raise TimeoutError("a service held a lock on the database for too long")


def connect(path: str, deadline: Deadline) -> sqlite3.Connection:
    """Open a live database; wait for its locks until `deadline`."""
    conn = sqlite3.connect(path, timeout=deadline.left, isolation_level=None)
    read_text_losslessly(conn)
    return conn


def open_capture(path: str) -> sqlite3.Connection:
    """Open a captured file for reading, without creating a file beside it."""
    if not Path(path).exists():
        # The database did not exist at the capture; an empty database is equivalent.
        conn = sqlite3.connect(":memory:", isolation_level=None)
    else:
        conn = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None)
    read_text_losslessly(conn)
    return conn


def captured_digests(directory: str, count: int) -> list[str]:
    """Return the content digest of each captured database."""
    digests: list[str] = []
    for index in range(count):
        with contextlib.closing(open_capture(f"{directory}/{index}.db")) as conn:
            digests.append(content_digest(conn))
    return digests


def digest_of(paths: Sequence[str], digests: Sequence[str]) -> str:
    """Return one digest of a whole capture, which includes its paths."""
    text = json.dumps(list(zip(paths, digests, strict=True)))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def capture(paths: Sequence[str], directory: str, deadline: Deadline) -> list[str]:
    """Copy all databases at one instant into the new `directory`; return their digests."""
    copy_all(paths, directory, deadline)
    try:
        return captured_digests(directory, len(paths))
    except BaseException:
        remove(Path(directory))
        raise


def copy_all(paths: Sequence[str], directory: str, deadline: Deadline) -> None:
    """Copy all databases at one instant into the new `directory`."""
    parent = Path(directory).parent
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    parent.chmod(0o700)
    partial = Path(f"{directory}.partial")
    if Path(directory).exists():
        raise FileExistsError(f"{directory} already exists")
    partial.mkdir(mode=0o700)
    try:
        with _with_write_locks(paths, deadline):
            for index, path in enumerate(paths):
                if Path(path).exists():
                    _copy_out(path, f"{partial}/{index}.db", deadline)
        partial.rename(directory)
    except BaseException:
        remove(partial)
        raise


def remove(directory: Path) -> None:
    """Remove a directory of captured files. Idempotent."""
    if directory.exists():
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


@contextlib.contextmanager
def _with_write_locks(paths: Sequence[str], deadline: Deadline) -> Generator[None, None, None]:
    """Lock every database against writers, so that no commit is between two copies."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            if Path(path).exists():
                conn = stack.enter_context(contextlib.closing(connect(path, deadline)))
                conn.execute("BEGIN IMMEDIATE")
        yield


def _copy_out(path: str, target: str, deadline: Deadline) -> None:
    with (
        contextlib.closing(connect(path, deadline)) as source,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        # The copy is deleted if anything fails, so it does not need a journal.
        copy.execute("PRAGMA journal_mode = OFF").fetchall()
        copy.execute("PRAGMA synchronous = OFF")
        source.backup(copy, pages=-1, progress=deadline.check, sleep=0.01)


def restore(
    paths: Sequence[str], directory: str, digest: str, safety: str, deadline: Deadline
) -> None:
    """Restore all captured databases; if one fails, restore the earlier contents."""
    if not Path(directory).is_dir():
        raise ValueError("the snapshot is not in this sandbox")
    expected = captured_digests(directory, len(paths))
    if digest_of(paths, expected) != digest:
        raise ValueError("the files of the snapshot do not match its digest")
    copy_all(paths, safety, deadline)
    touched: list[int] = []
    try:
        _restore_all(range(len(paths)), paths, directory, expected, touched, deadline)
    except BaseException:
        # Only the databases that were changed: a locked database was not, and stays locked.
        before = captured_digests(safety, len(paths))
        _restore_all(
            list(dict.fromkeys(touched)), paths, safety, before, touched, Deadline(_UNDO_SEC)
        )
        raise
    finally:
        remove(Path(safety))


def _restore_all(
    indices: Sequence[int],
    paths: Sequence[str],
    directory: str,
    expected: Sequence[str],
    touched: list[int],
    deadline: Deadline,
) -> None:
    with contextlib.ExitStack() as locked:
        for index in indices:
            source, path = f"{directory}/{index}.db", Path(paths[index])
            if not Path(source).exists() and not path.exists():
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            live = locked.enter_context(contextlib.closing(connect(str(path), deadline)))
            for _ in range(_ATTEMPTS):
                _copy_in(source, live, deadline)
                touched.append(index)
                if _matches(live, expected[index]):
                    break
                deadline.check()
            else:
                raise RuntimeError(f"a writer kept changing {path} while it was restored")


def _copy_in(source: str, live: sqlite3.Connection, deadline: Deadline) -> None:
    # SQLite's own backup writes through the log that the services read, so they see the
    # result with their next statement. They would not see a file that replaces the path.
    with contextlib.closing(open_capture(source)) as captured:
        captured.backup(live, pages=-1, progress=deadline.check, sleep=0.01)


def _matches(live: sqlite3.Connection, expected: str) -> bool:
    """Return whether the content is as expected; if so, keep it write-locked."""
    live.execute("BEGIN IMMEDIATE")
    if content_digest(live) == expected:
        return True
    live.execute("ROLLBACK")
    return False


def main() -> None:
    """Run the request in the first argument; print its result as JSON."""
    request = json.loads(sys.argv[1])
    paths, directory = request["paths"], request["directory"]
    deadline = Deadline(request["timeout"])
    os.umask(0o077)
    try:
        answer = _answer(request, paths, directory, deadline)
    except (OSError, sqlite3.Error, ValueError, RuntimeError) as exc:
        answer = {"error": f"{type(exc).__name__}: {exc}"}
    sys.stdout.write(json.dumps(answer))


def _answer(
    request: Mapping[str, Any], paths: Sequence[str], directory: str, deadline: Deadline
) -> Mapping[str, str]:
    if request["do"] == "capture":
        return {"digest": digest_of(paths, capture(paths, directory, deadline))}
    restore(paths, directory, request["digest"], request["safety"], deadline)
    return {}
