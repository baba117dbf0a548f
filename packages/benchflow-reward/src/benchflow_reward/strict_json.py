"""Parse JSON of a hostile author: bounded in size, and with one meaning only."""

import json
import re
from typing import Any

from pydantic import JsonValue

MAX_NUMBER_CHARS = 64


class StrictJsonError(ValueError):
    """The text is not JSON by our rules. The message gives the reason."""


def parse_strict_json(data: bytes, *, max_depth: int = 16) -> JsonValue:
    """Return the value of `data`, which the caller has capped in size.

    Guarantees: UTF-8 without a byte order mark, at most `max_depth` nested
    containers, no key twice in one object (escapes are resolved first), no NaN
    or Infinity, numbers of at most 64 characters, no lone surrogates.

    Raises:
        StrictJsonError: Anything else. No other error leaves this function.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError("not UTF-8") from error
    _check_depth(text, max_depth)
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_short_int,
            parse_float=_short_float,
            parse_constant=_no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except StrictJsonError:
        raise
    except UnicodeEncodeError as error:
        raise StrictJsonError("a string holds a lone surrogate") from error
    except ValueError as error:
        raise StrictJsonError(f"not JSON: {error}") from error
    return value


# A string that never ends is one token too, so that the scan stays linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def _check_depth(text: str, max_depth: int) -> None:
    # Before the real parser runs, because that one recurses. Both read strings
    # alike, so up to the first error of the text the count is the parser's depth.
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        found = match.group()
        if found in "[{":
            depth += 1
            if depth > max_depth:
                raise StrictJsonError(f"nested deeper than {max_depth}")
        elif found in "]}":
            depth -= 1


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise StrictJsonError(f"the key {key!r} appears twice")
        result[key] = value
    return result


def _short_int(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise StrictJsonError("a number is too long")
    return int(text)


def _short_float(text: str) -> float:
    if len(text) > MAX_NUMBER_CHARS:
        raise StrictJsonError("a number is too long")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise StrictJsonError(f"the number {text} is out of range")
    return value


def _no_constant(text: str) -> float:
    raise StrictJsonError(f"{text} is not a JSON number")


def same_json(left: JsonValue, right: JsonValue) -> bool:
    """Whether two JSON values are equal; unlike in Python, `true` is not `1`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)
