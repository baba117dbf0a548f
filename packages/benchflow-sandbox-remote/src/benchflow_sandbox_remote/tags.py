"""Labels as short tags, for clouds whose tags do not have every length and character."""

import base64
import json
import re
import time
import zlib
from collections.abc import Mapping
from itertools import count

from pydantic import TypeAdapter

from .cloud import CloudRecord

_SIZE, _MAX_BYTES = 63, 1 << 16
_CREATED = "benchflow.created"
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_LABELS = TypeAdapter(dict[str, str])


def tags_of(prefix: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return tags of at most 63 characters of `A-Z a-z 0-9 . _ -` for any labels."""
    packed = zlib.compress(json.dumps(dict(labels)).encode(), 9)
    text = base64.urlsafe_b64encode(packed).decode().replace("=", ".")
    pieces = (text[at : at + _SIZE] for at in range(0, len(text), _SIZE))
    return {f"{prefix}{number}": piece for number, piece in enumerate(pieces)}


def labels_of(prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of tags, or nothing if someone else wrote the tags."""
    names = iter(f"{prefix}{number}" for number in count())
    text = "".join(iter(lambda: tags.get(next(names), ""), "")).replace(".", "=")
    try:
        unpacked = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text), _MAX_BYTES)
        return _LABELS.validate_json(unpacked)
    except (ValueError, zlib.error):
        return {}


def timed_tags(prefix: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a sandbox that is created now; see `tags_of`."""
    return tags_of(prefix, {**labels, _CREATED: str(time.time())})


def record_of_tags(prefix: str, identity: str, tags: Mapping[str, str]) -> CloudRecord:
    """Return the record of a sandbox with the tags of `timed_tags`, or with other ones."""
    labels = labels_of(prefix, tags)
    created = labels.pop(_CREATED, "")
    return CloudRecord(identity, labels, float(created) if _TIME.fullmatch(created) else 0.0)
