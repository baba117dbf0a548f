"""The baseline of a comparison: fingerprints of files that do not count as changes."""

import os
from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

MAX_SAVED = 8 << 20
"""Characters. A larger baseline is not saved; a restored sandbox then has no baseline."""

_SAFE = "/ :+,@"


def with_ignored_changes(
    mark: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, str]:
    """Return a baseline that includes the changes between two times.

    A path that had changed before the first time stays a change. All three arguments are
    results of `Comparison.fingerprints`, which omit paths that are as in the base.
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
    """Encode a baseline in ASCII. Return `None` for no baseline, or one that is too large."""
    if mark is None:
        return None
    encoded = {_quote(path): _quote(fingerprint) for path, fingerprint in mark.items()}
    size = sum(len(path) + len(fingerprint) for path, fingerprint in encoded.items())
    return encoded if size <= MAX_SAVED else None


def decode_baseline(mark: Mapping[str, str] | None) -> dict[str, str] | None:
    """Decode the result of `encode_baseline`."""
    if mark is None:
        return None
    return {_unquote(path): _unquote(fingerprint) for path, fingerprint in mark.items()}


def _quote(text: str) -> str:
    return quote(os.fsencode(text), safe=_SAFE)


def _unquote(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
