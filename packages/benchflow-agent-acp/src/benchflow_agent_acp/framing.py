"""Split bytes from a hostile writer into lines, and lines into checked JSON objects."""

import json
import math
import re
from typing import Any, cast

from benchflow_contracts import AgentProtocolError

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_OPENERS = (b"[", b"{")


def split_lines(buffer: bytearray, chunk: bytes, *, limit: int) -> list[bytes]:
    """Append `chunk` to `buffer`; remove and return the complete lines, without line ends.

    `buffer` then has one incomplete line of at most `limit` bytes.

    Raises:
        AgentProtocolError: A line is longer than `limit` bytes.
    """
    if b"\n" not in chunk:
        buffer += chunk
        _check_length(len(buffer), limit)
        return []
    head, *middle = chunk.split(b"\n")
    lines = [bytes(buffer) + head, *middle[:-1]]
    buffer[:] = middle[-1]
    for line in (*lines, buffer):
        _check_length(len(line), limit)
    return [line.rstrip(b"\r") for line in lines]


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise AgentProtocolError(f"the agent sent a line of more than {limit} bytes")


def is_noise(line: bytes) -> bool:
    """Return whether `line` is not a JSON object, such as a banner."""
    return not line.lstrip().startswith(b"{")


def parse_message(line: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parse one JSON-RPC object.

    The result has finite numbers and valid Unicode only, so any strict JSON writer can write the
    result again. A lone surrogate becomes `?`; JavaScript sends one when it cuts a string.

    Raises:
        AgentProtocolError: The line is not UTF-8 or not JSON, is too deep, or has NaN or
            infinity.
    """
    _check_depth(line, max_depth)
    try:
        message = json.loads(
            line.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise AgentProtocolError(f"the agent sent a broken message: {error!s:.200}") from error
    if b"\\u" in line:
        message = _without_surrogates(message)
    return as_object(message)


def as_object(value: object) -> dict[str, Any]:
    """Return a parsed JSON value if it is an object, else an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _without_surrogates(message: object) -> object:
    text = json.dumps(message, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return message


def _check_depth(line: bytes, max_depth: int) -> None:
    if line.count(b"{") + line.count(b"[") <= max_depth:
        return
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match.group()
        if token in _OPENERS:
            depth += 1
            if depth > max_depth:
                raise AgentProtocolError(f"the agent sent JSON deeper than {max_depth} levels")
        elif token in (b"]", b"}"):
            depth -= 1


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r:.40} is not a finite number")
    return value
