"""The audit log: one JSON line for each action of a user, and each login."""

import json
import os
import threading
import time
from pathlib import Path


class AuditLog:
    """Appends lines to a file that only this user may read. Without a file, it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def record(self, user: str, action: str, target: str, outcome: str, remote: str = "") -> None:
        """Append one line durably. An action whose line cannot be written must not happen.

        Raises:
            OSError: The file cannot be written.
        """
        if self._path is None:
            return
        line = {
            "at": time.time(),
            "user": user,
            "action": action,
            "target": target[:500],
            "outcome": outcome,
            "remote": remote,
        }
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with self._lock:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
