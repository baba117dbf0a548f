"""What a restarted server does with a rollout of the server before it."""

from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import StoreError
from benchflow_store import StoredRollout, checkpoint_paths

from .entries import SavedRollout

Recovery = Literal[
    "keep", "queue", "finish", "continue", "stop", "park", "rerun", "lose", "abandon"
]
"""`keep`: it had ended, or is parked. `queue`: it waits again. `finish`: its record on disk is
complete. `continue`: its last attempt is resumed. `stop`: it was to be cancelled. `park`: it was
to be parked, and has a checkpoint. `rerun`: it ran without a checkpoint, and runs again from its
begin. `lose`: it ran, and nothing can continue it. `abandon`: nobody can ask for its result."""

MAX_ATTEMPTS: Final = 3
"""A rollout that ended its server so often is lost: it may be the reason."""


def recovery_of(saved: SavedRollout, home: Path) -> Recovery:
    """Return what becomes of a rollout, by its row and by the files of its last attempt."""
    state = saved.status.state
    if saved.is_tied and saved.acknowledged_at is None:
        return "abandon"
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
    try:
        if not stored.has_events:
            # The attempt was killed before its first event, so nothing of it ran.
            return "queue"
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
        can_rerun = saved.reruns and len(saved.attempts) < MAX_ATTEMPTS and saved.stop == "none"
        return "rerun" if can_rerun else "lose"
    return "park" if saved.stop == "park" else "continue"
