"""Sessions whose leader has ended.

The engine restores such a session only for a child of the first process. A daemon that returned to
another parent, a child subreaper, gets the session of that parent.
"""

import struct
from pathlib import Path

from .image_entries import entries, fields, numbers

_PID, _PARENT, _SESSION = 1, 2, 4
"""Fields of `pstree_entry`."""
_HEAD = 8
_SIZE = struct.Struct("<I")


def complete(image: str) -> None:
    """Give every process of an image a session that the engine can restore.

    Raises:
        OSError: The list of processes is malformed.
    """
    path = Path(image, "pstree.img")
    tree = list(entries(str(path)))
    sessions = _sessions([numbers(entry) for entry in tree])
    if not sessions:
        return
    content = path.read_bytes()[:_HEAD]
    for entry in tree:
        changed = _with_session(entry, sessions.get(numbers(entry)[_PID]))
        content += _SIZE.pack(len(changed)) + changed
    path.write_bytes(content)


def _sessions(tree: list[dict[int, int]]) -> dict[int, int]:
    """Return the new session of each process that needs one."""
    by_pid = {process[_PID]: process for process in tree}
    root = tree[0][_PID] if tree else 0

    def session(process: dict[int, int]) -> int:
        parent = by_pid.get(process[_PARENT])
        if process[_SESSION] in by_pid or parent is None or parent[_PID] == root:
            return process[_SESSION]
        return session(parent)

    return {
        pid: new
        for pid, process in by_pid.items()
        if (new := session(process)) != process[_SESSION]
    }


def _with_session(entry: bytes, session: int | None) -> bytes:
    if session is None:
        return entry
    changed = b""
    for key, value in fields(entry):
        if not isinstance(value, int):
            raise OSError(22, "a process of an image has an unknown field")
        changed += _varint(key << 3) + _varint(session if key == _SESSION else value)
    return changed


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])
