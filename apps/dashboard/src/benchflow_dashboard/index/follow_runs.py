"""Follows the files of rollouts into rows: by position, a torn last line waits for its end."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pydantic_core

from .counted_rows import delete_run, delete_steps, write_run
from .database import IndexWriter
from .discovery import RunKey
from .liveness import FileUse
from .log_fold import LogFold, StepText
from .run_row import RunSources, make_row
from .stat_of import NO_FILE, FileStamp, open_regular, stamp, stamp_of

_READ_BYTES: Final = 4 << 20
"""The maximum that is read of one log at a time."""
_LINE_BYTES: Final = 64 << 20
_RESULT_BYTES: Final = 8 << 20

_STORE: Final = """
INSERT INTO follows (run, log, result, position, lines, fold, attempt, is_settled)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE SET log = excluded.log,
result = excluded.result, position = excluded.position, lines = excluded.lines,
fold = excluded.fold, attempt = excluded.attempt, is_settled = excluded.is_settled"""
_LOAD: Final = """
SELECT log, result, position, lines, fold, attempt, is_settled FROM follows WHERE run = ?"""


@dataclass(slots=True)
class RunState:
    """How far one rollout was followed."""

    run: int | None = None
    log: FileStamp = NO_FILE
    result: FileStamp = NO_FILE
    position: int = 0
    lines: int = 0
    fold: LogFold = field(default_factory=LogFold)
    attempt: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_settled: bool = False
    is_live: bool = False
    has_log_left: bool = False
    """Whether whole lines may be left that nobody has read."""


class RunFollower:
    """The rollouts of the index. Each call belongs into a transaction of the writer."""

    def __init__(self, writer: IndexWriter, jobs_dir: Path) -> None:
        """Continue from the rows that the index has."""
        self._writer, self._jobs_dir = writer, jobs_dir
        rows = writer.rows(
            "SELECT id, job, name, has_files, is_settled FROM runs JOIN follows ON run = id "
            "ORDER BY finished DESC"
        )
        self._ids: dict[RunKey, int] = {(job, name): run for run, job, name, _, _ in rows}
        self.with_files: set[RunKey] = {(row[1], row[2]) for row in rows if row[3]}
        self._open: dict[RunKey, RunState | None] = {
            (row[1], row[2]): None for row in rows if row[3] and not row[4]
        }

    @property
    def open_keys(self) -> list[RunKey]:
        """The rollouts that have not settled."""
        return list(self._open)

    @property
    def has_live(self) -> bool:
        """Whether a rollout runs."""
        return any(state is not None and state.is_live for state in self._open.values())

    @property
    def settled_keys(self) -> list[RunKey]:
        """The rollouts that have ended and were read to their end."""
        return [key for key in self.with_files if key not in self._open]

    def add(self, key: RunKey, use: FileUse) -> None:
        """Add a rollout that was found, with what its result says. Its log is read later."""
        self.with_files.add(key)
        self._open[key] = state = self._load(key)
        self._refresh(key, state, use, reads_log=False)

    def follow(self, key: RunKey, use: FileUse) -> bool:
        """Read what is new of a rollout. Return whether more is left to read."""
        state = self._open.get(key)
        if state is None:
            self._open[key] = state = self._load(key)
        self._refresh(key, state, use, reads_log=True)
        if state.is_settled and key in self._open:
            del self._open[key]
        return state.has_log_left

    def check(self, key: RunKey) -> None:
        """Follow a settled rollout again if its files have changed."""
        directory = self._path(key)
        run = self._ids[key]
        log, result = self._writer.rows("SELECT log, result FROM follows WHERE run = ?", (run,))[0]
        stamps = [stamp_of(directory / name) for name in ("events.jsonl", "result.json")]
        if stamps != [tuple(json.loads(log)), tuple(json.loads(result))]:
            self._open[key] = None

    def set_attempt(self, key: RunKey, attempt: Mapping[str, Any]) -> None:
        """Set what the record of the job says of a rollout, which may not have files here."""
        state = self._open.get(key) or self._load(key)
        if state.attempt == attempt:
            return
        state.attempt = attempt
        if key in self._open:
            self._open[key] = state
        self._write(key, state)

    def forget_record(self, job: str) -> None:
        """Forget what the record of a job said. Rollouts without files here are deleted."""
        for key, run in [item for item in self._ids.items() if item[0][0] == job]:
            if key in self.with_files:
                self.set_attempt(key, {})
            else:
                delete_run(self._writer, run)
                del self._ids[key]

    def _load(self, key: RunKey) -> RunState:
        run = self._ids.get(key)
        if run is None:
            return RunState(has_log_left=True)
        log, result, position, lines, fold, attempt, is_settled = self._writer.rows(_LOAD, (run,))[
            0
        ]
        return RunState(
            run=run,
            log=_stamp(log),
            result=_stamp(result),
            position=position,
            lines=lines,
            fold=LogFold.from_json(fold),
            attempt=json.loads(attempt),
            is_settled=bool(is_settled),
            has_log_left=True,
        )

    def _refresh(self, key: RunKey, state: RunState, use: FileUse, *, reads_log: bool) -> None:
        directory = self._path(key)
        log = stamp_of(directory / "events.jsonl")
        result = stamp_of(directory / "result.json")
        if log == result == NO_FILE and not directory.is_dir():
            self._remove(key, state)
            return
        is_live = result == NO_FILE and use(log[0], log[1] / 1e9)
        is_same = (log, result, is_live) == (state.log, state.result, state.is_live)
        if is_same and state.run is not None and not (reads_log and state.has_log_left):
            return
        steps: list[StepText] = []
        if reads_log and log != NO_FILE:
            steps = self._read_log(directory / "events.jsonl", state)
        elif reads_log:
            if state.log != NO_FILE:
                self._restart(state)
            state.log, state.has_log_left = NO_FILE, False
        state.result, state.is_live = result, is_live
        state.is_settled = result != NO_FILE and not state.has_log_left
        self._write(key, state)
        self._add_steps(state, steps)

    def _read_log(self, path: Path, state: RunState) -> list[StepText]:
        try:
            with open_regular(path) as file:
                now = stamp(os.fstat(file.fileno()))
                if _was_rewritten(state, now):
                    self._restart(state)
                file.seek(state.position)
                data = file.read(_READ_BYTES)
                while b"\n" not in data and len(data) >= _READ_BYTES:
                    more = file.read(_READ_BYTES)
                    data += more
                    if not more or len(data) > _LINE_BYTES:
                        break
        except OSError as error:
            state.fold.problem = f"events.jsonl is not readable: {error.strerror or error}"
            state.has_log_left = False
            return []
        state.log = now
        if b"\n" not in data and len(data) > _LINE_BYTES:
            state.fold.problem = f"line {state.lines + 1} of events.jsonl is longer than 64 MiB"
            state.has_log_left = False
            return []
        state.has_log_left = len(data) >= _READ_BYTES
        return _read_lines(state, data)

    def _restart(self, state: RunState) -> None:
        state.fold, state.position, state.lines = LogFold(), 0, 0
        if state.run is not None:
            delete_steps(self._writer, state.run)

    def _write(self, key: RunKey, state: RunState) -> None:
        directory = self._path(key)
        has_files = key in self.with_files
        row = make_row(
            RunSources(
                job=key[0],
                name=key[1],
                fold=state.fold,
                result=_read_result(directory / "result.json") if has_files else None,
                ran=_read_ran(directory / "config.json") if state.result == NO_FILE else {},
                attempt=state.attempt,
                written=state.log[1] / 1e9,
                has_files=has_files,
                is_live=state.is_live,
            )
        )
        state.run = self._ids[key] = write_run(self._writer, row, state.run, state.fold.rewards)
        self._writer.run(
            _STORE,
            (
                state.run,
                json.dumps(state.log),
                json.dumps(state.result),
                state.position,
                state.lines,
                state.fold.to_json(),
                json.dumps(dict(state.attempt)),
                state.is_settled,
            ),
        )

    def _add_steps(self, state: RunState, steps: list[StepText]) -> None:
        for each in steps:
            self._writer.run(
                "INSERT INTO steps (run, seq, node, title, body) VALUES (?, ?, ?, ?, ?)",
                (state.run, each.seq, each.node, each.title, each.body),
            )
            self._writer.run(
                "INSERT INTO step_words (rowid, title, body) VALUES (last_insert_rowid(), ?, ?)",
                (each.title, each.body),
            )

    def _remove(self, key: RunKey, state: RunState) -> None:
        """Remove a rollout whose directory is gone. The record of its job may still have it."""
        self.with_files.discard(key)
        self._open.pop(key, None)
        if state.run is None:
            return
        if state.attempt:
            delete_steps(self._writer, state.run)
            fresh = RunState(run=state.run, attempt=state.attempt)
            self._write(key, fresh)
        else:
            delete_run(self._writer, state.run)
            del self._ids[key]
        state.has_log_left = False

    def _path(self, key: RunKey) -> Path:
        return self._jobs_dir / key[0] / key[1]


def _read_lines(state: RunState, data: bytes) -> list[StepText]:
    """Apply the whole lines of `data`. An unfinished last line waits."""
    end = data.rfind(b"\n") + 1
    steps: list[StepText] = []
    for line in data[:end].split(b"\n")[:-1]:
        step = state.fold.read_line(line, state.lines)
        state.lines += 1
        if step is not None:
            steps.append(step)
    state.position += end
    return steps


def _was_rewritten(state: RunState, now: FileStamp) -> bool:
    """Return whether the log is not the one that was read so far, with more lines at its end."""
    if state.position == 0:
        return False
    inode, written, size = state.log
    is_other = now[0] != inode or now[2] < max(size, state.position)
    return is_other or (now[2] == size and now[1] != written)


def _read_result(path: Path) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read(_RESULT_BYTES)
    except OSError:
        return None


def _read_ran(path: Path) -> Mapping[str, Any]:
    body = _read_result(path)
    try:
        content: Any = {} if body is None else pydantic_core.from_json(body)
        ran: dict[str, Any] = dict(content["ran"])
    except (ValueError, LookupError, TypeError):
        return {}
    return ran


def _stamp(stored: str) -> FileStamp:
    inode, written, size = json.loads(stored)
    return inode, written, size
