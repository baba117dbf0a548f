"""Why an engine of live snapshots has ended: what it said, or else how it ended."""

import os
import signal
from contextlib import suppress

LOG = "engine.log"
ERRORS = "engine.err"
"""The standard error of an engine: it writes there what it cannot write to its log yet."""
_MAX_BYTES = 1 << 16
_MAX_LINES = 4
_MARK = "Error "
# Without CAP_SYS_RESOURCE an engine cannot raise this limit, and works all the same.
_HARMLESS = "RLIMIT_NOFILE"


def open_errors(directory: str) -> int:
    """Open the standard error of an engine, before it has mounts of its own.

    They could not be made read-only with a file open in one of them.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(f"{directory}/{ERRORS}", flags, 0o600)


def note(errors: int, error: BaseException) -> None:
    """Write to the standard error of an engine why its program did not start."""
    os.write(errors, f"Error (launcher): {error or type(error).__name__}\n".encode())


def status_of(ended: os.waitid_result | None) -> int:
    """Return the status of a process that `waitid` has found ended."""
    if ended is None:
        return 0
    return ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status


def how_ended(status: int) -> str:
    """Return how a process ended, by the status of its wait."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def complaint(directory: str, status: int) -> str:
    """Return why the engine that worked in `directory` has failed."""
    log, errors = _read(f"{directory}/{LOG}"), _read(f"{directory}/{ERRORS}")
    said = [line.partition(_MARK)[2] for line in log if _MARK in line]
    said += [line.partition(_MARK)[2] if _MARK in line else line for line in errors]
    said = [line for line in said if _HARMLESS not in line]
    how = f"the engine {how_ended(status)}"
    if not said:
        return f"{how}; its log ends with {log[-1]!r}" if log else f"{how}, and logged nothing"
    text = "; ".join(said[:_MAX_LINES])
    return f"{how}: {text}" if os.WIFSIGNALED(status) else text


def _read(path: str) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of ours
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
