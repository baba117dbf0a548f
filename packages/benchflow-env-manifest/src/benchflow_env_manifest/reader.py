"""Read a manifest from a file. An error lists every problem with its key."""

import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import ManifestError
from pydantic import ValidationError

from .coherence import Problem, cross_problems
from .manifest import Manifest

MAX_BYTES = 64 * 1024
MAX_DOTS = 32
MAX_DEPTH = 32

# Strings and comments hide their contents; an unclosed string ends with its line, where
# the TOML parser stops with an error of its own.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)'
    r"|'[^'\n]*(?:'|(?=\n)|\Z)"
    r"|#[^\n]*"
    r"|[\[\]{}.,=\n]",
    re.DOTALL,
)


def over_cap(text: str) -> tuple[int, str] | None:
    """Return the line number and the reason if `text` exceeds a limit.

    The time is linear in the length of the text.
    """
    dots = depth = 0
    for match in _TOKEN.finditer(text):
        mark = match.group()
        if mark == ".":
            dots += 1
        elif mark in "[{":
            depth, dots = depth + 1, 0
        elif mark in "]}":
            depth, dots = max(0, depth - 1), 0
        elif mark in ",=\n":
            dots = 0
        if dots > MAX_DOTS or depth > MAX_DEPTH:
            return text.count("\n", 0, match.start()) + 1, _reason(dots)
    return None


def _reason(dots: int) -> str:
    if dots > MAX_DOTS:
        return f"a key has more than {MAX_DOTS} dots"
    return f"arrays and tables are nested more than {MAX_DEPTH} deep"


_HINT = "the keys and their types are listed in the reference of environment.toml"
_LINE = re.compile(r"line (\d+)")


def load_manifest(path: Path) -> Manifest:
    """Read and check an `environment.toml`.

    The limits are 64 KiB, 32 dots in a key and 32 levels of nesting. They are checked before
    parsing, so a hostile manifest costs less than a second.

    Raises:
        ManifestError: The file cannot be read, is not TOML, or breaks a rule. The
            message has one `file:key: problem` line for each problem.
    """
    return parse_manifest(_read(path), source=str(path))


def parse_manifest(data: bytes, *, source: str = "environment.toml") -> Manifest:
    """Check a manifest's bytes; `source` names it in errors.

    Raises:
        ManifestError: As `load_manifest` does.
    """
    document = _parse(_decode(data, source), source)
    problems = cross_problems(document)
    try:
        return Manifest.model_validate(document)
    except ValidationError as exc:
        raise _error(source, [*_key_problems(exc, document), *problems]) from None


def _read(path: Path) -> bytes:
    try:
        # A pipe or device could block or never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError("not a regular file", where=str(path), hint="check the path")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise ManifestError(
            f"cannot read the manifest: {reason}", where=str(path), hint="check the path"
        ) from None


def _decode(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        raise ManifestError(
            f"larger than {MAX_BYTES} bytes",
            where=source,
            hint="a manifest describes a world; keep data in its image",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ManifestError(
            "not UTF-8 text", where=f"{source}:{line}", hint="save the file as UTF-8"
        ) from None


def _parse(text: str, source: str) -> dict[str, Any]:
    broken = over_cap(text)
    if broken is not None:
        line, reason = broken
        raise ManifestError(reason, where=f"{source}:{line}", hint=_HINT)
    try:
        return tomllib.loads(text)
    except ValueError as exc:
        raise ManifestError(
            f"not TOML: {exc}", where=_place(source, text, str(exc)), hint="fix the syntax"
        ) from None


def _place(source: str, text: str, message: str) -> str:
    found = _LINE.search(message)
    if found is not None:
        return f"{source}:{found.group(1)}"
    at_end = "end of document" in message
    return f"{source}:{len(text.splitlines()) or 1}" if at_end else source


def _error(source: str, problems: Iterable[Problem]) -> ManifestError:
    """Return one error for all problems; the first problem's location is `where`."""
    (key, text), *rest = dict.fromkeys(problems)
    lines = [text, *(f"{source}:{other}: {problem}" for other, problem in rest)]
    return ManifestError("\n".join(lines), where=f"{source}:{key}", hint=_HINT)


def _key_problems(exc: ValidationError, document: Mapping[str, Any]) -> Iterable[Problem]:
    for error in exc.errors(include_url=False, include_context=False):
        # Rules for several keys have no location here; they are reported by key already.
        if error["loc"]:
            yield (
                _dotted(_written(error["loc"], document)),
                _describe(error["type"], error["msg"], error["input"]),
            )


def _written(loc: tuple[int | str, ...], document: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return a location in the file, without the kinds that the model adds."""
    if loc[:2] != ("environment", "state") or len(loc) < 3:
        return loc
    single = isinstance(document["environment"]["state"], Mapping)
    return (*loc[:2], *(() if single else loc[2:3]), *loc[4:])


def _dotted(loc: tuple[int | str, ...]) -> str:
    key = ""
    for part in loc:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", part) else ascii(part[:80])
            key += f".{name}" if key else name
    return key


def _describe(kind: str, message: str, value: object) -> str:
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return "unknown key"
    message = message.removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]} (got {_shown(value)})"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "an array"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge integer"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
