"""The logs of a test run that are kept on the host."""

import os
from pathlib import Path

from benchflow_contracts import ExecResult
from benchflow_contracts.redaction import redactor

MAX_STDOUT_CHARS = 1024 * 1024
_BEFORE_CUT = 64 * 1024
"""Bytes in which a secret may begin that the cut divides."""
_SAVED = ("reward.txt", "reward.json", "ctrf.json")
_MAX_KEPT_BYTES = 4 * 1024 * 1024


def write_stdout(result: ExecResult, log_dir: Path | None) -> None:
    """Write `test-stdout.txt`: stdout, then stderr, each with its end kept."""
    if log_dir is None:
        return
    log_dir.mkdir(parents=True, exist_ok=True)
    hide = redactor().text  # before the cut: a part of a secret is not found
    parts = [
        _tail(hide(result.stdout), result.stdout_dropped),
        "\n--- stderr ---\n",
        _tail(hide(result.stderr), result.stderr_dropped),
    ]
    text = "".join(parts)
    (log_dir / "test-stdout.txt").write_text(text, "utf-8", errors="replace")


def _tail(text: str, dropped: int) -> str:
    cut = max(0, len(text) - MAX_STDOUT_CHARS)
    notes = f"[{cut} characters cut here]\n" if cut else ""
    end = f"\n[{dropped} bytes dropped]\n" if dropped else ""
    return notes + text[cut:] + end


def save_stdout(logs: Path, log_dir: Path | None) -> None:
    """Copy the end of the `test-stdout.txt` that a test run left below `logs`."""
    source = logs / "test-stdout.txt"
    if log_dir is None or not source.is_file():
        return
    log_dir.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as stream:
        cut = max(0, stream.seek(0, os.SEEK_END) - MAX_STDOUT_CHARS)
        stream.seek(max(0, cut - _BEFORE_CUT))
        note = f"[{cut} bytes cut here]\n".encode() if cut else b""
        said = redactor().data(stream.read(_BEFORE_CUT + MAX_STDOUT_CHARS))[-MAX_STDOUT_CHARS:]
    (log_dir / source.name).write_bytes(note + said)


def save_reward_files(logs: Path, log_dir: Path | None) -> None:
    """Copy the raw reward files as they are, but for secrets. Links and huge files are left out."""
    if log_dir is None:
        return
    log_dir.mkdir(parents=True, exist_ok=True)
    for name in _SAVED:
        source = logs / name
        if source.is_symlink() or not source.is_file():
            continue
        if os.lstat(source).st_size <= _MAX_KEPT_BYTES:
            (log_dir / name).write_bytes(redactor().data(source.read_bytes()))
