"""The digest of a file's content, in the time that its data takes: a hole may exceed any disk."""

import errno
import hashlib
import os
from collections.abc import Iterator

_PIECE, _CHUNK = 1 << 14, 1 << 18
_ZEROS = bytes(_PIECE)


def content_digest(fd: int) -> str:
    """Return the SHA-256 over the size and the pieces that are not all zero.

    It does not depend on where the file has holes: a hole is zeros, and so is written.
    """
    size = os.fstat(fd).st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    for start, end in _data(fd, size):
        for at in range(start, end, _CHUNK):
            chunk = os.pread(fd, min(_CHUNK, end - at), at)
            for inner in range(0, len(chunk), _PIECE):
                piece = chunk[inner : inner + _PIECE]
                if piece != _ZEROS[: len(piece)]:
                    digest.update((at + inner).to_bytes(8, "big"))
                    digest.update(piece)
    return digest.hexdigest()


def _data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where data may be, in whole pieces."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        start -= start % _PIECE
        at = min(size, end + -end % _PIECE)
        yield start, at
