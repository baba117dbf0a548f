"""Lock a job: only one process runs it at a time."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchflow_contracts import StoreError, UsageError
from benchflow_store import new_job_name
from benchflow_store.database import JobIsRunningError, is_locked, lock_job


def new_directory(jobs_dir: Path) -> Path:
    """Create the directory of a job without a name: `NAME`, else `NAME-2` and so on.

    Raises:
        StoreError: The directory cannot be created.
    """
    name, number = new_job_name(), 1
    while True:
        directory = jobs_dir / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _cannot_be_made(directory, error) from error
        else:
            return directory


@contextmanager
def held(directory: Path) -> Generator[None]:
    """Create the directory of a job, and lock it. The lock ends with the process at the latest.

    Raises:
        JobLockedError: Another process runs the job.
        StoreError: The directory cannot be created or locked.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(directory, error) from error
    with ExitStack() as lock:
        try:
            lock.enter_context(lock_job(directory))
        except JobIsRunningError:
            raise _is_run(directory) from None
        yield


def check_unlocked(directory: Path) -> None:
    """Check that no process runs a job, and create nothing.

    Raises:
        JobLockedError: Another process runs the job.
    """
    if is_locked(directory):
        raise _is_run(directory)


class JobLockedError(UsageError):
    """Another process runs the job."""

    exit_code = 75
    """As EX_TEMPFAIL of sysexits.h: the same command may work later."""


def _is_run(directory: Path) -> JobLockedError:
    return JobLockedError(
        f"job {directory.name!r} is being run by another process",
        hint="wait until it is over, or give another --job-name",
    )


def _cannot_be_made(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot create job directory {str(directory)!r}: {error}")
