"""Follow the output of a build: the current instruction and its last lines."""

import base64
import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile

_VERTEX, _LOG = 1, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Vertex:
    """One step. A step of the Dockerfile is named `[STAGE N/M] INSTRUCTION`."""

    digest: str
    name: str
    started: bool
    failed: bool
    """Whether it failed itself. BuildKit cancels the steps that run beside a failed one."""


@dataclass(frozen=True, slots=True)
class Log:
    """Output of a step."""

    digest: str
    text: str


def read_trace(aux: str) -> Iterator[Vertex | Log]:
    """Decode instruction message. Skip malformed parts.

    Source: `StatusResponse` of moby/buildkit api/services/control/control.proto, whose numbers
    are the same from 0.8 on.
    """
    try:
        data = base64.b64decode(aux, validate=True)
        for number, value in _fields(data):
            if number == _VERTEX and isinstance(value, bytes):
                yield _vertex(dict(_fields(value)))
            elif number == _LOG and isinstance(value, bytes):
                log = dict(_fields(value))
                yield Log(_text(log.get(1)), _text(log.get(4)))
    except (ValueError, IndexError):
        return


def _vertex(fields: dict[int, bytes | int]) -> Vertex:
    error = _text(fields.get(7))
    failed = bool(error) and "context canceled" not in error
    return Vertex(_text(fields.get(1)), _text(fields.get(3)), 5 in fields, failed)


def _text(value: bytes | int | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Split a protocol buffers message; raise `IndexError` if it is cut off."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, place = _varint(data, place)
        if size is None or place + size > len(data):
            raise IndexError
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80 or shift > 63:
            return value, place


_log = logging.getLogger(__name__)
_LINES, _SHOWN = 30, 3000
_STEP_NAME = re.compile(r"\[(?:(\S+) +)?(\d+)/\d+\] (.*)", re.DOTALL)
_TRACE = "moby.buildkit.trace"
_COUNTED = {"RUN", "COPY", "ADD", "WORKDIR"}
_PARSING = re.compile(r"parse error (?:on )?line (\d+)", re.IGNORECASE)


class BuildOutput:
    """Stores the last lines of instruction build and its position in the Dockerfile."""

    def __init__(self, name: str, file: Dockerfile, tag: str) -> None:
        self._name = name
        self._file = file
        self._tag = tag
        self._tail: deque[str] = deque(maxlen=_LINES)
        self._vertex = ""
        self._has_failed = False
        self._line = 0
        self._instruction = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Process instruction message of the engine; raise `SandboxError` if it is a failure."""
        if "error" in event:
            raise self.failed(str(event["error"]))
        if event.get("id") == _TRACE:
            for status in read_trace(str(event.get("aux"))):
                self._trace(status)

    def _trace(self, status: Vertex | Log) -> None:
        if isinstance(status, Log):
            # BuildKit runs several steps at once. Ignore the output of the others.
            if status.digest == self._vertex:
                self._print(status.text.rstrip("\n"))
            return
        match = _STEP_NAME.fullmatch(status.name)
        if match is None or self._has_failed:
            return
        # The statuses of one message have no order: a failed step counts, also before others.
        self._has_failed = status.failed
        if (status.started or status.failed) and status.digest != self._vertex:
            self._vertex = status.digest
            self._begin(self._line_of(match[1] or "", int(match[2])), match[3])

    def _line_of(self, stage: str, number: int) -> int:
        """Return the line of a stage's step, counted as BuildKit's frontend does."""
        lines, names, count = list[int](), set[str](), 0
        for instruction in self._file.instructions:
            if instruction.name == "FROM":
                if lines and stage in names:
                    break
                words = instruction.text.lower().split()
                earlier = words[0] in names or words[0] == "scratch"
                lines, count = ([] if earlier else [instruction.line]), count + 1
                names = {f"stage-{count - 1}", *words[2:3]}
            elif instruction.name in _COUNTED:
                lines.append(instruction.line)
        return lines[number - 1] if 0 < number <= len(lines) else 0

    def _begin(self, line: int, instruction: str) -> None:
        self._line, self._instruction = line, instruction
        self._tail.clear()
        _log.info("building %s: %s", self._tag, instruction)

    def _print(self, text: str) -> None:
        self._tail.append(text[:_SHOWN])
        _log.debug("building %s: %s", self._tag, text)

    @property
    def where(self) -> str:
        """The current instruction, as `Dockerfile:line`."""
        return f"{self._name}:{self._line}" if self._line else self._name

    @property
    def shown(self) -> str:
        """The current instruction and the end of its output."""
        tail = "\n".join(self._tail)[-_SHOWN:]
        return "".join(f"\n{part}" for part in (self._instruction[:_SHOWN], tail) if part)

    def failed(self, why: str) -> SandboxError:
        """Return the error of a build that the engine ended."""
        parsing = _PARSING.search(why)
        where = f"{self._name}:{parsing[1]}" if parsing and not self._line else self.where
        unknown = "unknown flag" in why.lower() or "unknown instruction" in why.lower()
        hint = (
            "the engine's own BuildKit may be too old for this syntax: do not use the syntax, or"
            " build the image elsewhere and name the image in the task"
            if unknown
            else "`docker build` of the same directory shows the whole output"
        )
        return SandboxError(f"the image cannot be built: {why}{self.shown}", where=where, hint=hint)
