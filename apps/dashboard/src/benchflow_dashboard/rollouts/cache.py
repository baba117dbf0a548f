"""A bounded cache of parsed rollouts: one fold for each state of a rollout's log."""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError
from benchflow_store import StoredRollout

_ROLLOUTS: Final = 64
_LOG_BYTES: Final = 64 << 20
"""The bound on the sum of the logs whose folds are kept. A fold takes a few times its log."""

Signature = tuple[tuple[int, int, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class LoadedRollout:
    """One state of a rollout. Do not change `stored.tree`: requests share it."""

    stored: StoredRollout
    seq: int
    """The `seq` of the last event, -1 of an empty log."""
    signature: Signature
    """Equal while the files are the same. A key for whatever is derived from the rollout."""
    log_bytes: int


class RolloutCache:
    """The rollouts that were read last. Safe to use from several threads."""

    def __init__(self, *, rollouts: int = _ROLLOUTS, log_bytes: int = _LOG_BYTES) -> None:
        """Create an empty cache with room for `rollouts`, and for logs of `log_bytes` together."""
        self._rollouts, self._log_bytes = rollouts, log_bytes
        self._entries: OrderedDict[Path, LoadedRollout] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, directory: Path) -> LoadedRollout:
        """Return the rollout in `directory` as its files are now, folded once for each state.

        Raises:
            StoreError: The event log is missing or damaged.
        """
        signature = _signature(directory)
        with self._lock:
            entry = self._entries.get(directory)
            if entry is not None and entry.signature == signature:
                self._entries.move_to_end(directory)
                return entry
        stored = _read(directory, entry, signature)
        events = stored.log.events
        if events:
            _ = stored.tree
        entry = LoadedRollout(
            stored=stored,
            seq=events[-1].seq if events else -1,
            signature=signature,
            log_bytes=signature[0][2],
        )
        with self._lock:
            self._entries[directory] = entry
            self._entries.move_to_end(directory)
            self._evict()
        return entry

    def _evict(self) -> None:
        total = sum(entry.log_bytes for entry in self._entries.values())
        while len(self._entries) > 1 and (
            len(self._entries) > self._rollouts or total > self._log_bytes
        ):
            _, dropped = self._entries.popitem(last=False)
            total -= dropped.log_bytes


def _read(directory: Path, known: LoadedRollout | None, signature: Signature) -> StoredRollout:
    """Return the rollout. Of a log that has grown, only the new lines are read."""
    is_same_log = known is not None and known.signature[0][0] == signature[0][0]
    if known is None or not is_same_log or signature[0][2] < known.stored.log.size:
        return StoredRollout(directory)
    try:
        return known.stored.with_new_events()
    except StoreError:
        # The file was written anew in place. Its own error, if any, is the one to report.
        return StoredRollout(directory)


def _signature(directory: Path) -> Signature:
    """Return inode, last write and size of the files that change while a rollout runs."""
    return _stat(directory / "events.jsonl"), _stat(directory / "result.json")


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - the same call, without an object for each request
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
