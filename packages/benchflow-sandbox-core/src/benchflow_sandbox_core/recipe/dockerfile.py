"""The instructions of a Dockerfile, which a task's author wrote."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from benchflow_contracts.errors import SandboxUnsupportedError, TaskError

from .heredoc import Heredoc, begun, read

_MAX_BYTES, _MAX_LINES = 1 << 20, 20_000
_FLAGGED = {"FROM", "RUN", "COPY", "ADD", "HEALTHCHECK"}
_DOCUMENTED = {"RUN", "COPY", "ADD"}
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(\S+)\s*$")
_FRONTEND = re.compile(
    r"(docker\.io/)?docker/dockerfile(-upstream)?(:[\w.-]+)?(@sha256:[0-9a-f]+)?"
)
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    line: int
    """Where it begins, from 1."""
    last: int
    """Where it ends, with its here-documents."""
    name: str
    """In capitals."""
    flags: tuple[tuple[str, str], ...]
    text: str
    """What follows the flags."""
    array: tuple[str, ...] | None
    """The text as a JSON array of texts, when it is one."""
    documents: tuple[Heredoc, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions, and how a line goes on in the next."""

    instructions: tuple[Instruction, ...]
    escape: str
    directives: int
    """How many lines at the top are directives."""

    @classmethod
    def parse(cls, data: bytes, name: str = "Dockerfile") -> "Dockerfile":
        """Read a Dockerfile. Whether there are instructions of such names is not judged.

        Source: the Dockerfile reference of BuildKit's frontend 1.7.

        Raises:
            TaskError: It is malformed, at `name:LINE`.
            SandboxUnsupportedError: It is for another frontend than Docker's own.
        """
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = text.split("\n")
        if len(data) > _MAX_BYTES or len(lines) > _MAX_LINES:
            raise TaskError("it is larger than any Dockerfile", where=name)
        directives = _directives(lines)
        escape = _escape(directives, name)
        _check_syntax(directives, name)
        found = list(_instructions(lines, escape, name))
        if not found:
            raise TaskError("it has no instruction", where=name)
        return cls(tuple(found), escape, len(directives))


def _directives(lines: list[str]) -> dict[str, tuple[str, int]]:
    """Return what the comments at the very top say, each with its line."""
    found: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            break
        found.setdefault(match[1].lower(), (match[2], number))
    return found


def _escape(directives: dict[str, tuple[str, int]], name: str) -> str:
    escape, line = directives.get("escape", ("\\", 0))
    if escape not in {"\\", "`"}:
        raise TaskError(f"escape={escape!r} is no escape", where=f"{name}:{line}")
    return escape


def _check_syntax(directives: dict[str, tuple[str, int]], name: str) -> None:
    frontend, line = directives.get("syntax", ("", 0))
    if frontend and not _FRONTEND.fullmatch(frontend):
        raise SandboxUnsupportedError(
            f"syntax={frontend[:200]!r}: no image is fetched to interpret a Dockerfile",
            where=f"{name}:{line}",
            hint="write syntax=docker/dockerfile:1, or build the image and let the task name it",
        )


def _instructions(lines: list[str], escape: str, name: str) -> Iterator[Instruction]:
    numbered = enumerate(lines, 1)
    parts, begin = list[str](), 0
    ends = re.compile(re.escape(escape) + r"[ \t]*$")
    for number, raw in numbered:
        line = raw.removesuffix("\r")
        # Comments and empty lines do not end an instruction that goes on.
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = ends.search(line)
        begin = begin or number
        parts.append(line if match is None else line[: match.start()])
        if match is None:
            if text := "".join(parts).strip():
                yield _instruction(text, begin, number, numbered, name)
            parts, begin = [], 0
    if text := "".join(parts).strip():
        yield _instruction(text, begin, len(lines), numbered, name)


def _instruction(
    whole: str, line: int, last: int, following: Iterator[tuple[int, str]], name: str
) -> Instruction:
    word, *others = whole.split(maxsplit=1)
    rest = "".join(others)
    where = f"{name}:{line}"
    word, rest = word.upper(), rest.strip()
    flags: list[tuple[str, str]] = []
    while word in _FLAGGED and (match := _FLAG.match(rest)):
        flags.append((match[1], match[2] or ""))
        rest = rest[match.end() :]
    if not rest:
        raise TaskError(f"{word[:40]} says nothing", where=where)
    array = _array(rest)
    documents = list[Heredoc]()
    if word == "ONBUILD" and begun(rest, where):
        raise SandboxUnsupportedError(
            "ONBUILD with a here-document is not interpreted",
            where=where,
            hint="write the instruction without one",
        )
    if word in _DOCUMENTED and array is None:
        for document in begun(rest, where):
            whole_document, last = read(document, following, where)
            documents.append(whole_document)
    return Instruction(line, last, word, tuple(flags), rest, array, tuple(documents))


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
