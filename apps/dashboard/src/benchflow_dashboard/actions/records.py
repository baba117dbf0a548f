"""The actions of operators that this dashboard carried out, and what came of each.

Each action is a small file in the directory of the dashboard's own files. A command that an action
started has its log beside the file.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import BenchFlowError, Model, UsageError
from benchflow_store import write_text
from pydantic import ValidationError

_ID: Final = re.compile(r"[0-9a-f]{28}")
_MOST_BYTES: Final = 1 << 16
_TAIL: Final = 20_000
"""The bytes of a log that a page shows."""
_LISTED: Final = 50

Outcome = Literal["requested", "accepted", "refused", "started", "ended", "failed"]
"""`started` is a command that runs; `ended` and `failed` are one with exit code 0 and another.
`requested` is an action whose result was not noted, because the dashboard was killed."""


class ActionRecord(Model):
    """One action."""

    id: str
    at: float
    """Seconds since the epoch."""
    user: str
    action: str
    """Such as `pause-now` or `branch`."""
    job: str
    """The job; empty for a rollout outside a job."""
    target: str
    """The job, or `ROLLOUT:NODE`."""
    back: str
    """The page from which the action came."""
    command: tuple[str, ...]
    """The words of the command that does the same."""
    outcome: Outcome
    message: str = ""
    hint: str = ""
    process: int | None = None
    """The process of a started command."""
    exit_code: int | None = None

    def refused(self, error: BenchFlowError) -> "ActionRecord":
        """Return the record of the refusal."""
        fields = {"outcome": "refused", "message": str(error), "hint": error.hint or ""}
        return self.model_copy(update=fields)


class ActionStore:
    """The records and logs of actions in one directory. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is created with the first action."""
        self.directory = directory

    def new_id(self) -> str:
        """Return a new id. Later ids sort after earlier ones."""
        return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"

    def write(self, record: ActionRecord) -> None:
        """Write a record, or replace the earlier one with the same id.

        Raises:
            StoreError: The file cannot be written.
        """
        self._prepare()
        path = self.directory / f"{record.id}.json"
        write_text(path, record.model_dump_json() + "\n", mode=0o600)

    def open_log(self, identifier: str) -> int:
        """Create the log of an action, and return its descriptor.

        Raises:
            UsageError: The file cannot be created.
        """
        try:
            self._prepare()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            return os.open(self._log(identifier), flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot create the log of the action: {error.strerror}",
                hint=f"check the directory {str(self.directory)!r}",
            ) from error

    def read(self, identifier: str) -> ActionRecord | None:
        """Return a record; `None` if the directory does not have it."""
        if not _ID.fullmatch(identifier):
            return None
        try:
            return ActionRecord.model_validate_json(
                _read(self.directory / f"{identifier}.json", _MOST_BYTES)
            )
        except (OSError, ValidationError):
            return None

    def log_tail(self, identifier: str) -> str:
        """Return the end of the log of a command; empty without a log."""
        with suppress(OSError):
            return _read(self._log(identifier), _TAIL, at_end=True).decode("utf-8", "replace")
        return ""

    def newest(self, job: str | None = None, most: int = _LISTED) -> list[ActionRecord]:
        """Return the newest actions, of one job or of all."""
        found: list[ActionRecord] = []
        for record in self._newest():
            if job is None or record.job == job:
                found.append(record)
                if len(found) == most:
                    break
        return found

    def _newest(self) -> Iterator[ActionRecord]:
        try:
            names = sorted(os.listdir(self.directory), reverse=True)  # noqa: PTH208 - only names
        except OSError:
            return
        for name in [each for each in names if each.endswith(".json")][: 10 * _LISTED]:
            record = self.read(name.removesuffix(".json"))
            if record is not None:
                yield record

    def _prepare(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _log(self, identifier: str) -> Path:
        return self.directory / f"{identifier}.log"


def _read(path: Path, most: int, *, at_end: bool = False) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if at_end:
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return file.read(most)
