"""A mark: the prints of a box's files that count as no change, and how it is saved."""

import os
from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

MAX_SAVED = 8 << 20
"""Characters. A mark that is larger is not saved, and then nothing is compared with it."""

_SAFE = "/ :+,@"


def with_ignored_changes(
    mark: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, str]:
    """Return a mark that has what was written between two times, but where it was changed before.

    All three are as `Comparison.prints` makes them, which are silent on what is as in the base.
    """
    extended = dict(mark)
    for path in before.keys() | after.keys():
        untouched, now = before.get(path) == mark.get(path), after.get(path)
        if not untouched or now == before.get(path):
            continue
        if now is None:
            del extended[path]
        else:
            extended[path] = now
    return extended


def encode_baseline(mark: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return a mark in ASCII, whatever bytes are in its names; `None` for none, or too large."""
    if mark is None:
        return None
    encoded = {_quoted(path): _quoted(told) for path, told in mark.items()}
    size = sum(len(path) + len(told) for path, told in encoded.items())
    return encoded if size <= MAX_SAVED else None


def decode_baseline(mark: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the mark that `to_save` was given."""
    if mark is None:
        return None
    return {_unquoted(path): _unquoted(told) for path, told in mark.items()}


def _quoted(text: str) -> str:
    return quote(os.fsencode(text), safe=_SAFE)


def _unquoted(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
