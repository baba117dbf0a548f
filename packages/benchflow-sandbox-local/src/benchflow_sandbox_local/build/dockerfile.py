"""The instructions of a Dockerfile, which a task's author wrote."""

import json
import re
from dataclasses import dataclass
from typing import cast

from benchflow_contracts.errors import TaskError

_MAX_BYTES, _MAX_LINES = 1 << 20, 20_000
_FLAGGED = {"FROM", "RUN", "COPY", "ADD", "HEALTHCHECK"}
_KNOWN = _FLAGGED | {
    *("ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL"),
    *("USER", "VOLUME", "WORKDIR"),
}
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(\S+)\s*$")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HERE = re.compile(r"(?<!\S)\d*<<-?\s*(?![<\s])\S")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    line: int
    """Where it begins, from 1."""
    name: str
    """In capitals."""
    flags: tuple[tuple[str, str], ...]
    text: str
    """What follows the flags."""
    array: tuple[str, ...] | None
    """The text as a JSON array of texts, when it is one."""


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions, and how a line goes on in the next."""

    instructions: tuple[Instruction, ...]
    escape: str

    @classmethod
    def parse(cls, data: bytes, name: str = "Dockerfile") -> "Dockerfile":
        """Read a Dockerfile. Source: the Dockerfile reference of BuildKit's frontend 1.7.

        Raises:
            TaskError: It is malformed, or has what is not interpreted here, at `name:LINE`.
        """
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = text.splitlines()
        if len(data) > _MAX_BYTES or len(lines) > _MAX_LINES:
            raise TaskError("it is larger than any Dockerfile", where=name)
        escape = _escape(lines, name)
        found = [_instruction(number, text, name) for number, text in _joined(lines, escape)]
        if not found:
            raise TaskError("it has no instruction", where=name)
        return cls(tuple(found), escape)


def _escape(lines: list[str], name: str) -> str:
    """Return what the directives at the very top say."""
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            if match[2] not in {"\\", "`"}:
                raise TaskError(f"escape={match[2]!r} is no escape", where=f"{name}:{number}")
            return match[2]
    return "\\"


def _joined(lines: list[str], escape: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    begun, parts = 0, list[str]()
    ends = re.compile(re.escape(escape) + r"[ \t]*$")
    for number, line in enumerate(lines, 1):
        # Comments and empty lines do not end an instruction that goes on.
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = begun or number
        match = ends.search(line)
        parts.append(line if match is None else line[: match.start()])
        if match is None:
            found.append((begun, "".join(parts).strip()))
            begun, parts = 0, []
    if parts:
        found.append((begun, "".join(parts).strip()))
    return [(number, text) for number, text in found if text]


def _instruction(line: int, whole: str, name: str) -> Instruction:
    word, *others = whole.split(maxsplit=1)
    rest = "".join(others)
    where = f"{name}:{line}"
    word, rest = word.upper(), rest.strip()
    if word not in _KNOWN:
        raise TaskError(
            f"the instruction {word[:40]!r} is not interpreted by the local sandbox",
            where=where,
            hint="use the docker sandbox for this task",
        )
    flags: list[tuple[str, str]] = []
    while word in _FLAGGED and (match := _FLAG.match(rest)):
        flags.append((match[1], match[2] or ""))
        rest = rest[match.end() :]
    if word in {"RUN", "COPY", "ADD"} and _HERE.search(rest):
        raise TaskError(
            f"a here-document of {word} is not interpreted by the local sandbox",
            where=where,
            hint="put the text into a file of the context, or use the docker sandbox",
        )
    if not rest:
        raise TaskError(f"{word} says nothing", where=where)
    return Instruction(line, word, tuple(flags), rest, _array(rest))


def _array(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None  # then it is for the shell, as with Docker
    if not isinstance(found, list):
        return None
    items = cast("list[object]", found)
    return tuple(map(str, items)) if all(isinstance(item, str) for item in items) else None
