"""The file with the results of `bench tasks check`, from which a later check resumes."""

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO, cast

from benchflow_contracts import ListedTask, StoreError, UsageError
from benchflow_engine.config import RunConfig

from .output import note

Row = Mapping[str, Any]
"""The result of one task, as `--json` prints it."""

_FORMAT: Final = "bench tasks check 1"


class CheckState:
    """Results by task, one JSON line each. Use as a context manager.

    A result is returned only if the task's path and content, the configuration and the release are
    the same. An incomplete last line is ignored.

    Raises:
        UsageError: The file is not a state file.
        StoreError: The file cannot be read or written.
    """

    def __init__(self, path: Path, config: RunConfig, *, run: bool) -> None:
        self._path = path
        self._head = {"format": _FORMAT, "check": _fingerprint(config, run=run)}
        self._rows: dict[str, tuple[str, Row]] = {}
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            can_resume = self._read()
            self._file = self._path.open("a" if can_resume else "w", encoding="utf-8")
            # Begin a new line, because the last check may have left an incomplete line.
            self._write("" if can_resume else json.dumps(self._head))
        except OSError as error:
            raise StoreError(f"cannot use {str(self._path)!r}: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def row(self, task: ListedTask) -> Row | None:
        """Return the earlier result of `task`, or `None` if the task has to be checked."""
        digest, row = self._rows.get(str(task.path), ("", None))
        return row if row is not None and digest == task.digest else None

    def add(self, task: ListedTask, row: Row) -> None:
        """Save a result, unless the next check may give another result.

        Such a task could not be read, or one of its runs did not give a reward.
        """
        is_final = all(run["reward"] is not None for run in row["runs"])
        if task.digest is not None and is_final:
            line = {"path": str(task.path), "digest": task.digest, "row": row}
            self._write(json.dumps(line, ensure_ascii=False))

    def _write(self, line: str) -> None:
        assert self._file is not None, "the state is open"
        self._file.write(f"{line}\n")
        self._file.flush()

    def _read(self) -> bool:
        """Read the results of the file; return whether the file can be continued."""
        if not self._path.exists():
            return False
        with self._path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
            head = _object(first)
            if first and head.get("format") != _FORMAT:
                hint = "name a new file"
                raise UsageError(
                    f"{str(self._path)!r} is not a state file of `bench tasks check`", hint=hint
                )
            if head != self._head:
                if first:
                    note("--state: the options have changed: every task is checked again")
                return False
            for line in file:
                entry = _object(line)
                if {"path", "digest", "row"} <= entry.keys():
                    self._rows[str(entry["path"])] = (str(entry["digest"]), entry["row"])
        return True


def _object(line: str) -> dict[str, Any]:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _fingerprint(config: RunConfig, *, run: bool) -> str:
    inputs = {"run": run, "release": version("benchflow"), "config": config.model_dump_json()}
    return sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
