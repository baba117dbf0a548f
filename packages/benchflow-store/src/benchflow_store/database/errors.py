"""The errors of the record database. Each one is a StoreError."""

import errno
from typing import Final

from benchflow_contracts import StoreError, UsageError

FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class StaleWriterError(StoreError):
    """Another writer has taken the job over. This writer's commits are refused.

    Nothing of the refused transaction is in the database.
    """

    default_hint = "end this process; the newer one continues the job"


class JobIsRunningError(StoreError):
    """Another process runs the job."""

    exit_code = 75
    """Of `bench`, as EX_TEMPFAIL of sysexits.h: the same command may work later."""
    default_hint = "wait until the other process ends, or stop it"


class EmptyDatabaseError(UsageError):
    """The database has its tables, and no job. Its writer ended before the first commit."""

    default_hint = "start the job"


class SchemaVersionError(StoreError):
    """The database has another schema version than this program."""

    def __init__(self, place: str, found: int, known: int) -> None:
        newer = found > known
        super().__init__(
            f"{place} has schema version {found}, and this program knows version {known}",
            hint="use a newer BenchFlow" if newer else "run `bench store migrate`",
        )
        self.found = found
        self.known = known


class DiskFullError(StoreError):
    """The file system has no room for the transaction. Nothing of it is in the database.

    The same commit can be tried again when there is room.
    """

    default_retryable = True

    def __init__(self, place: str, needed_bytes: int) -> None:
        super().__init__(
            f"cannot write {place}: the file system is full, and this needs {needed_bytes} bytes",
            hint=f"free at least {needed_bytes} bytes on that file system, then resume the job",
        )
        self.place = place
        self.needed_bytes = needed_bytes


class DiskFaultError(StoreError):
    """The disk failed to write or to flush. The writer refuses every further commit.

    After a failed flush, a second flush may report a success that did not happen. The failed
    transaction may or may not be in the database. Open a new writer to read what is there.
    """

    default_hint = "check the disk (`dmesg`), then resume the job"


class UnknownOutcomeError(StoreError):
    """The server vanished during a commit. The writer refuses every further commit.

    The transaction may or may not be in the database. Open a new writer to read what is there.
    """

    default_hint = "check the server, then resume the job"


class DamagedDatabaseError(StoreError):
    """The file is not a database, or its pages are damaged."""

    default_hint = (
        "restore the database from a copy, or move it and its -wal and -shm files away: "
        "`bench job resume` then reads the results of the rollouts on disk"
    )


class DatabaseBusyError(StoreError):
    """Another process held the database for too long, or the server cannot be reached."""

    default_hint = "end the process that holds the database, or check the server"
    default_retryable = True


def failed_write(place: str, error: OSError, needed_bytes: int) -> StoreError:
    """Return the error of a file or directory at `place` that cannot be written."""
    if error.errno in FULL_ERRNOS:
        return DiskFullError(place, needed_bytes)
    kind = DiskFaultError if error.errno == errno.EIO else StoreError
    return kind(f"cannot write {place}: {error.strerror}")
