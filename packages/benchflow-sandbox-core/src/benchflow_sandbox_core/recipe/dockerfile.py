"""The instructions of a Dockerfile, which the task's author wrote."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from benchflow_contracts.errors import SandboxUnsupportedError, TaskError

from .heredoc import Heredoc, heredocs_of, read

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
    """One instruction, with its lines joined."""

    line: int
    """Its first line, from 1."""
    last: int
    """Its last line, with its here-documents."""
    name: str
    """In capitals."""
    flags: tuple[tuple[str, str], ...]
    text: str
    """The text after the flags."""
    array: tuple[str, ...] | None
    """The text as a JSON array of strings, if it is one."""
    documents: tuple[Heredoc, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions, and the character that continues a line."""

    instructions: tuple[Instruction, ...]
    escape: str
    directives: int
    """The number of directive lines at the top."""

    @classmethod
    def parse(cls, data: bytes, name: str = "Dockerfile") -> "Dockerfile":
        """Read a Dockerfile. The names of the instructions are not checked.

        Source: the Dockerfile reference of BuildKit's frontend 1.7.

        Raises:
            TaskError: The file is malformed, at `name:LINE`.
            SandboxUnsupportedError: The file requires another frontend than Docker's own.
        """
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = text.split("\n")
        if len(data) > _MAX_BYTES or len(lines) > _MAX_LINES:
            raise TaskError("the Dockerfile is too large", where=name)
        directives = _directives(lines)
        escape = _escape(directives, name)
        _check_syntax(directives, name)
        instructions = list(_instructions(lines, escape, name))
        if not instructions:
            raise TaskError("the Dockerfile has no instruction", where=name)
        return cls(tuple(instructions), escape, len(directives))


def _directives(lines: list[str]) -> dict[str, tuple[str, int]]:
    """Return the directives in the comments at the top, each with its line."""
    directives: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            break
        directives.setdefault(match[1].lower(), (match[2], number))
    return directives


def _escape(directives: dict[str, tuple[str, int]], name: str) -> str:
    escape, line = directives.get("escape", ("\\", 0))
    if escape not in {"\\", "`"}:
        raise TaskError(f"escape={escape!r} is not an escape character", where=f"{name}:{line}")
    return escape


def _check_syntax(directives: dict[str, tuple[str, int]], name: str) -> None:
    frontend, line = directives.get("syntax", ("", 0))
    if frontend and not _FRONTEND.fullmatch(frontend):
        raise SandboxUnsupportedError(
            f"syntax={frontend[:200]!r}: a frontend image is not supported",
            where=f"{name}:{line}",
            hint="write syntax=docker/dockerfile:1, or build the image and name it in the task",
        )


def _instructions(lines: list[str], escape: str, name: str) -> Iterator[Instruction]:
    numbered = enumerate(lines, 1)
    parts, begin = list[str](), 0
    ends = re.compile(re.escape(escape) + r"[ \t]*$")
    for number, raw in numbered:
        line = raw.removesuffix("\r")
        # Comments and empty lines do not end a continued instruction.
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
        raise TaskError(f"{word[:40]} has no argument", where=where)
    array = _array(rest)
    documents = list[Heredoc]()
    if word == "ONBUILD" and heredocs_of(rest, where):
        raise SandboxUnsupportedError(
            "ONBUILD with a here-document is not supported",
            where=where,
            hint="write the instruction without a here-document",
        )
    if word in _DOCUMENTED and array is None:
        for heredoc in heredocs_of(rest, where):
            document, last = read(heredoc, following, where)
            documents.append(document)
    return Instruction(line, last, word, tuple(flags), rest, array, tuple(documents))


def _array(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        array = json.loads(text)
    except (ValueError, RecursionError):
        return None  # then the shell interprets it, as with Docker
    if not isinstance(array, list):
        return None
    items = cast("list[object]", array)
    return tuple(map(str, items)) if all(isinstance(item, str) for item in items) else None
