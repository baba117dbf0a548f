"""What a caller may name inside of a box."""

import posixpath

from benchflow_contracts.errors import TransferError


def absolute(path: str) -> str:
    """Return the normal form of a path inside; raise `TransferError` when it is not absolute."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise TransferError(f"{path!r} is not an absolute path without '..'")
    return "/" + posixpath.normpath(path).strip("/")
