"""Commands of `bench` that outlive the dashboard, each with its log beside the action's record."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchflow_contracts import StoreError, UsageError

from .records import ActionRecord, ActionStore


def bench_program() -> str:
    """Return the path of `bench`: the one beside this Python, else the one in `$PATH`.

    Raises:
        UsageError: Neither exists.
    """
    beside = Path(sys.executable).with_name("bench")
    found = str(beside) if beside.is_file() else shutil.which("bench")
    if found is None:
        raise UsageError(
            "the command `bench` was not found beside this Python or in $PATH",
            hint="install benchflow in the environment of the dashboard",
        )
    return found


def start_command(store: ActionStore, record: ActionRecord, words: Sequence[str]) -> ActionRecord:
    """Start `bench WORDS` as a user would, detached from the dashboard; return the new record.

    The command has its own session, so Ctrl-C and the end of the dashboard do not end it. A thread
    notes the exit code while the dashboard runs.

    Raises:
        UsageError: The program was not found or cannot be started, or the log cannot be created.
        StoreError: The record cannot be written; the command runs.
    """
    program = bench_program()
    log = store.open_log(record.id)
    try:
        process = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
    except (OSError, ValueError) as error:
        # A word with a NUL is a ValueError.
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot start {program!r}: {why}") from error
    finally:
        os.close(log)
    fields = {
        "outcome": "started",
        "process": process.pid,
        "message": f"started as process {process.pid}",
    }
    started = record.model_copy(update=fields)
    # A process that nobody waits for stays a zombie, whatever becomes of the record.
    thread = threading.Thread(target=_wait, args=(store, started, process), daemon=True)
    try:
        store.write(started)
    finally:
        thread.start()
    return started


def _wait(store: ActionStore, started: ActionRecord, process: "subprocess.Popen[bytes]") -> None:
    code = process.wait()
    fields = {
        "outcome": "failed" if code else "ended",
        "exit_code": code,
        "message": f"ended with exit code {code}",
    }
    with suppress(StoreError):
        store.write(started.model_copy(update=fields))


def is_running(record: ActionRecord) -> bool:
    """Return whether the process of a started command still exists.

    After a restart of the dashboard, its process may have ended without a note, or another process
    may have its id.
    """
    if record.outcome != "started" or record.process is None:
        return False
    try:
        os.kill(record.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True
