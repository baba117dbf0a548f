"""The durable record of the service: rollouts, their events, groups and idempotency keys.

Each call is one transaction in a write-ahead log: a killed server loses none. The log is not
forced to the disk at each commit, so a power cut may lose the last ones.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import StoreError, UsageError
from benchflow_serve_client import JobEvent, RolloutEvent
from benchflow_store.database.connection import SqliteConnection
from benchflow_store.database.errors import JobIsRunningError, StaleWriterError
from benchflow_store.database.job_lock import lock_job

_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE rollouts (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);
CREATE TABLE events (
    rollout TEXT NOT NULL,
    id INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (rollout, id)
) WITHOUT ROWID;
CREATE TABLE groups (id TEXT PRIMARY KEY, created_at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE keys (
    key TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL
);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY);
PRAGMA user_version = 1;
"""

_JOBS: Final = (
    "CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, body TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS job_events (job TEXT NOT NULL, id INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (job, id)) WITHOUT ROWID""",
)
"""Made also in a database of a service before jobs."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with an `Idempotency-Key`, and what the service made of it."""

    digest: str
    """The sha256 of the request."""
    kind: str
    target: str
    """The id of the rollout or of the group."""


@contextmanager
def lock_store(path: Path) -> Generator[None]:
    """Lock a database and its directory. A link to the database is followed.

    Raises:
        UsageError: Another process serves one of them.
        StoreError: A directory cannot be locked.
    """
    with ExitStack() as stack:
        try:
            for directory in sorted({path.parent.resolve(), path.resolve().parent}):
                stack.enter_context(lock_job(directory))
        except JobIsRunningError:
            raise UsageError(
                f"another process serves the directory {str(path.parent)!r}",
                hint="stop it, or name another directory with --dir",
            ) from None
        yield


class ServiceStore:
    """The database of one service. One process uses it, on one thread."""

    def __init__(self, path: Path) -> None:
        """Open the database, and make it if it is new.

        Raises:
            StoreError: The database cannot be opened, is damaged, or is of another version.
        """
        self._db = SqliteConnection(path, "create")
        self._db.query("PRAGMA synchronous=NORMAL")
        version = int(self._db.query("PRAGMA user_version")[0][0])
        if version == 0:
            with self._db.write_transaction():
                self._db.run_script(_SCHEMA)
        elif version != _SCHEMA_VERSION:
            self._db.close()
            raise StoreError(
                f"the database {str(path)!r} has version {version}, not {_SCHEMA_VERSION}",
                hint="name another --dir, or use the version of BenchFlow that made it",
            )
        for table in _JOBS:
            self._db.query(table)
        self._epoch = self._newest_epoch()

    def begin_epoch(self) -> int:
        """Return the number of this process: one more than the last one."""
        with self._db.write_transaction():
            self._db.query("INSERT INTO epochs SELECT COALESCE(MAX(epoch), 0) + 1 FROM epochs")
            self._epoch = self._newest_epoch()
        return self._epoch

    def _newest_epoch(self) -> int:
        return int(self._db.query("SELECT COALESCE(MAX(epoch), 0) FROM epochs")[0][0])

    @contextmanager
    def _write(self) -> Generator[None]:
        """Run the block as one transaction.

        Raises:
            StaleWriterError: A newer process serves the database.
        """
        with self._db.write_transaction():
            # A lock is gone with its file, which a cleaner of old files may delete.
            if self._newest_epoch() != self._epoch:
                raise StaleWriterError(f"a newer process serves {self._db.place}")
            yield

    def add(
        self,
        rollouts: list[tuple[int, str, str, RolloutEvent]],
        *,
        group: tuple[str, float, str] | None = None,
        key: tuple[str, IdempotentRequest] | None = None,
    ) -> None:
        """Record new rollouts, each with its first event, their group and their key, or nothing."""
        with self._write():
            for seq, ident, body, event in rollouts:
                self._db.query("INSERT INTO rollouts VALUES (?, ?, ?)", (seq, ident, body))
                self._insert_event(ident, event)
            if group is not None:
                self._db.query("INSERT INTO groups VALUES (?, ?, ?)", group)
            self._insert_key(key)
        self._db.tidy(is_idle=False)

    def save(
        self,
        ident: str,
        body: str,
        events: Sequence[RolloutEvent] = (),
        key: tuple[str, IdempotentRequest] | None = None,
    ) -> None:
        """Record the state of a rollout, with its newest events and the key of the request."""
        with self._write():
            self._db.query("UPDATE rollouts SET body = ? WHERE id = ?", (body, ident))
            for event in events:
                self._insert_event(ident, event)
            self._insert_key(key)
        self._db.tidy(is_idle=False)

    def add_event(self, ident: str, event: RolloutEvent) -> None:
        """Record an event of a rollout whose state does not change."""
        with self._write():
            self._insert_event(ident, event)
        self._db.tidy(is_idle=False)

    def _insert_key(self, key: tuple[str, IdempotentRequest] | None) -> None:
        if key is not None:
            name, request = key
            values = (name, request.digest, request.kind, request.target)
            self._db.query("INSERT INTO keys VALUES (?, ?, ?, ?)", values)

    def _insert_event(self, ident: str, event: RolloutEvent) -> None:
        values = (ident, event.id, event.model_dump_json(exclude_defaults=True))
        self._db.query("INSERT INTO events VALUES (?, ?, ?)", values)

    def find_key(self, key: str) -> IdempotentRequest | None:
        """Return the request that had an idempotency key, or None."""
        rows = self._db.query("SELECT digest, kind, target FROM keys WHERE key = ?", (key,))
        return IdempotentRequest(*rows[0]) if rows else None

    def rollouts(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the state of each rollout, in the order of their submission."""
        yield from self._db.query("SELECT seq, body FROM rollouts ORDER BY seq")

    def events(self, ident: str, after: int = 0, limit: int = -1) -> list[RolloutEvent]:
        """Return the first events of a rollout with a greater number than `after` (-1: all)."""
        sql = "SELECT body FROM events WHERE rollout = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._db.query(sql, (ident, after, limit))
        return [RolloutEvent.model_validate_json(row[0]) for row in rows]

    def last_event_id(self, ident: str) -> int:
        """Return the number of the last event of a rollout."""
        sql = "SELECT COALESCE(MAX(id), 0) FROM events WHERE rollout = ?"
        return int(self._db.query(sql, (ident,))[0][0])

    def groups(self) -> Iterator[dict[str, Any]]:
        """Yield the state of each group."""
        for (body,) in self._db.query("SELECT body FROM groups ORDER BY created_at"):
            yield json.loads(body)

    def delete(self, ident: str, group: tuple[str, str] | None = None) -> None:
        """Delete a rollout with its events and its keys, and record its group without it."""
        with self._write():
            if group is not None:
                name, body = group
                self._db.query("UPDATE groups SET body = ? WHERE id = ?", (body, name))
            self._db.query("DELETE FROM events WHERE rollout = ?", (ident,))
            self._db.query("DELETE FROM rollouts WHERE id = ?", (ident,))
            sql = "DELETE FROM keys WHERE target = ? AND kind IN ('rollout', 'resume')"
            self._db.query(sql, (ident,))

    def jobs(self) -> list[str]:
        """Return the state of each job, the oldest first."""
        return [row[0] for row in self._db.query("SELECT body FROM jobs ORDER BY rowid")]

    def save_job(
        self, name: str, body: str, key: tuple[str, IdempotentRequest] | None = None
    ) -> None:
        """Record the state of a job, with the key of its request."""
        sql = "INSERT INTO jobs VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        with self._write():
            self._db.query(sql, (name, body))
            self._insert_key(key)

    def add_job_event(self, job: str, event: JobEvent) -> None:
        """Record an event of a job."""
        values = (job, event.id, event.model_dump_json(exclude_defaults=True))
        with self._write():
            self._db.query("INSERT INTO job_events VALUES (?, ?, ?)", values)
        self._db.tidy(is_idle=False)

    def job_events(self, job: str, after: int, limit: int) -> list[JobEvent]:
        """Return the first events of a job with a greater number than `after`."""
        sql = "SELECT body FROM job_events WHERE job = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._db.query(sql, (job, after, limit))
        return [JobEvent.model_validate_json(row[0]) for row in rows]

    def last_job_event(self, job: str) -> int:
        """Return the number of the last event of a job."""
        sql = "SELECT COALESCE(MAX(id), 0) FROM job_events WHERE job = ?"
        return int(self._db.query(sql, (job,))[0][0])

    def job_slot_ends(self, job: str) -> dict[int, tuple[str, str | None]]:
        """Return status and rollout of each slot that has an event `slot`, by index."""
        sql = (
            "SELECT json_extract(body, '$.slot') FROM job_events "
            "WHERE job = ? AND json_extract(body, '$.kind') = 'slot' ORDER BY id"
        )
        slots = (json.loads(row[0]) for row in self._db.query(sql, (job,)))
        return {slot["index"]: (slot["status"], slot.get("rollout")) for slot in slots}

    def delete_job(self, name: str) -> None:
        """Delete a job with its events and its idempotency key. Its files stay."""
        with self._write():
            self._db.query("DELETE FROM job_events WHERE job = ?", (name,))
            self._db.query("DELETE FROM jobs WHERE name = ?", (name,))
            self._db.query("DELETE FROM keys WHERE target = ? AND kind = 'job'", (name,))

    def save_group(self, ident: str, body: str, members: Sequence[tuple[str, str]]) -> None:
        """Record the state of a group and of its members, or nothing."""
        with self._write():
            self._db.query("UPDATE groups SET body = ? WHERE id = ?", (body, ident))
            for rollout, state in members:
                self._db.query("UPDATE rollouts SET body = ? WHERE id = ?", (state, rollout))
        self._db.tidy(is_idle=False)

    def delete_group(self, ident: str) -> None:
        """Delete a group with its idempotency key. Its members stay."""
        with self._write():
            self._db.query("DELETE FROM groups WHERE id = ?", (ident,))
            self._db.query("DELETE FROM keys WHERE target = ? AND kind = 'group'", (ident,))

    def close(self) -> None:
        """Close the database."""
        self._db.close()
