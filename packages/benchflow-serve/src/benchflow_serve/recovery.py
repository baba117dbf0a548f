"""What a restarted server does with a rollout of the server before it."""

from pathlib import Path
from typing import Literal

from benchflow_contracts import StoreError
from benchflow_store import StoredRollout, checkpoint_paths

from .entries import SavedRollout

Recovery = Literal["keep", "queue", "finish", "continue", "stop", "park", "lose"]
"""`keep`: it had ended, or is parked. `queue`: it waits again. `finish`: its record on disk is
complete. `continue`: its last attempt is resumed. `stop`: it was to be cancelled. `park`: it was
to be parked, and has a checkpoint. `lose`: it ran, and nothing can continue it."""


def recovery_of(saved: SavedRollout, home: Path) -> Recovery:
    """Return what becomes of a rollout, by its row and by the files of its last attempt."""
    state = saved.status.state
    if state in {"ended", "parked"}:
        return "keep"
    if saved.stop in {"cancel", "drop"}:
        return "stop"
    if state == "queued":
        return "queue"
    if not saved.attempts:
        return "queue"
    return _of_attempt(home / saved.attempts[-1], saved)


def _of_attempt(directory: Path, saved: SavedRollout) -> Recovery:
    stored = StoredRollout(directory)
    if not stored.has_begun:
        # The attempt was killed before its first event, so nothing of it ran.
        return "queue"
    try:
        record = stored.record
        if record is not None and record.status != "cancelled":
            return "finish"
        has_ended = stored.tree.status not in {"running", "cancelled"}
    except StoreError:
        return "lose"
    if has_ended:
        return "continue"  # Only its summary is missing, so nothing runs.
    has_checkpoint = any(True for _ in checkpoint_paths(directory)) or saved.resumes is not None
    if not has_checkpoint:
        return "lose"
    return "park" if saved.stop == "park" else "continue"
