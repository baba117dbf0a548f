"""Decompression of the members of a log. Needs the extra `logs`."""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import zstandard


def decompress(packed: bytes, size: int) -> bytes:
    """Return at most `size` bytes.

    Raises:
        ValueError: The data are not zstd, or are damaged.
    """
    try:
        data: bytes = zstandard.ZstdDecompressor().stream_reader(packed).read(size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return data
