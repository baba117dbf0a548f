"""The several forms in which a compose file may say one thing."""

import re
import shlex
from typing import Annotated

from pydantic import BeforeValidator

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|m|s|ms|us))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmg]?)b?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _words(value: object) -> object:
    """A command line as a shell splits it, or a list of words."""
    return shlex.split(value) if isinstance(value, str) else value


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not _DURATION.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is no duration such as '1m30s'")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))


def _megabytes(value: object) -> object:
    text = str(value)
    found = _SIZE.fullmatch(text)
    if isinstance(value, bool) or found is None:
        raise ValueError(f"{text[:40]!r} is no size such as '512m'")
    return max(1, int(float(found[1]) * _BYTES[found[2].lower()]) >> 20)


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _cpus(value: object) -> object:
    return float(value) if isinstance(value, str) else value


def _unless_empty(value: object) -> object:
    return None if value == "" else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Megabytes = Annotated[int, BeforeValidator(_megabytes)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
Text = Annotated[str, BeforeValidator(_text)]
Cpus = Annotated[float, BeforeValidator(_cpus)]
UnlessEmpty = BeforeValidator(_unless_empty)
"""An empty text is nothing: `harbor task migrate` writes limits whose variables may be unset."""
