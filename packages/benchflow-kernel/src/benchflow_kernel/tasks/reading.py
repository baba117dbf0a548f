"""Read a task's files: text of limited size, TOML, and models with the key of each fault."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from benchflow_contracts import Model, TaskError
from pydantic import BaseModel, ValidationError

MAX_BYTES = 64 * 1024
MAX_KEY_DOTS = 32
MAX_DEPTH = 32

# Strings and comments first, so that their content does not count.
_TOKEN = re.compile(
    r"""
      \"\"\"(?:[^"\\]|\\.|"(?!""))*\"\"\""{0,2}
    | '''(?:[^']|'(?!''))*''''{0,2}
    | "(?:[^"\\\n]|\\.)*"
    | '[^'\n]*'
    | \#[^\n]*
    | [\[{] | [\]}]
    | [,=\n]
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def check_caps(text: str, name: str) -> None:
    """Refuse deep nesting and long dotted keys, which cost a parser quadratic time.

    Raises:
        TaskError: More than 32 dots in one key, or brackets more than 32 deep.
    """
    depth = dots = 0
    line = 1
    for match in _TOKEN.finditer(text):
        lexeme = match.group()
        if lexeme == ".":
            dots += 1
        elif lexeme in {"[", "{"}:
            depth, dots = depth + 1, 0
        elif lexeme in {"]", "}"}:
            depth, dots = max(0, depth - 1), 0
        elif lexeme in {",", "=", "\n"}:
            dots = 0
        if dots > MAX_KEY_DOTS:
            raise TaskError(f"a key has more than {MAX_KEY_DOTS} dots", where=f"{name}:{line}")
        if depth > MAX_DEPTH:
            raise TaskError(f"nested deeper than {MAX_DEPTH}", where=f"{name}:{line}")
        line += lexeme.count("\n")


Location = Sequence[str | int]


def fault_of(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    """Return the message for one fault of `model`, in TOML terms."""
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"])
    *parents, name = fault["loc"]
    near = get_close_matches(str(name), _keys(model, parents), n=1)
    return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"


def line_of(text: str, location: Location) -> int | None:
    """Return the line that sets the key at `location` in a TOML file, or None."""
    target = [str(part) for part in location if not isinstance(part, int)]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = _parts(header.group(1))
            if table == target:
                return number
        elif (key := re.match(r"\s*([\w.\"' -]+?)\s*=", line)) and [
            *table,
            *_parts(key.group(1)),
        ] == target:
            return number
    return None


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _keys(model: type[BaseModel], parents: Location) -> list[str]:
    """Return the keys of the table at `parents`; empty if it is not a known model."""
    tables = [model]
    for part in parents:
        if isinstance(part, int):
            continue
        fields = [table.model_fields[part] for table in tables if part in table.model_fields]
        inner = [table for field in fields for table in _models(field.annotation)]
        # In a location, the tag of a union's table follows the name of its field.
        tables = inner or [table for table in tables if _is_tagged(table, part)]
    return [name for table in tables for name in table.model_fields]


def _is_tagged(table: type[BaseModel], tag: str) -> bool:
    field = table.model_fields.get("kind")
    return field is not None and field.default == tag


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


_MAX_INSTRUCTION_BYTES = 1024 * 1024

ModelT = TypeVar("ModelT", bound=Model)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a file. All its numbers are finite.

    Raises:
        TaskError: The file is missing, too large, nested too deeply or not TOML.
    """
    data = _parse(_read(file, MAX_BYTES), str(file))
    problems = _infinite_keys(data, ())
    if problems:
        raise TaskError("must be a finite number", where=f"{file}:{problems[0]}")
    return data


def read_model(
    model: type[ModelT], data: Mapping[str, Any], where: str, *, file: Path | None = None
) -> ModelT:
    """Return `data` as a model, without conversion between types.

    Raises:
        TaskError: A key is wrong. The message names each wrong key, after `where`, and its line
            in `file`.
    """
    try:
        # Through JSON: strict mode then refuses "5" for 5, but accepts lists for tuples.
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        text = "" if file is None else _read(file, MAX_BYTES)
        faults = error.errors(include_url=False, include_input=False)
        lines = [
            f"{where}{_key(item['loc'])}: {fault_of(model, item)}{_line(text, item['loc'])}"
            for item in faults
        ]
        raise TaskError("\n".join(lines)) from error


def read_instruction(file: Path) -> str:
    """Return the text of a prompt.

    Raises:
        TaskError: The file is missing, empty or too large.
    """
    text = _read(file, _MAX_INSTRUCTION_BYTES)
    if not text.strip():
        raise TaskError("the instruction is empty", where=str(file))
    return text


def _parse(text: str, name: str) -> dict[str, Any]:
    check_caps(text, name)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        match = re.search(r"at line (\d+)", str(error))
        line = match.group(1) if match else text.rstrip("\n").count("\n") + 1
        where = f"{name}:{line}"
        raise TaskError(f"not TOML: {error}", where=where) from error


def _read(file: Path, cap: int) -> str:
    """Return a file's text. The digest has checked that it is a regular file."""
    try:
        with file.open("rb") as stream:
            data = stream.read(cap + 1)
        if len(data) > cap:
            raise TaskError(f"larger than {cap // 1024} KiB", where=str(file))
        return data.decode("utf-8")
    except FileNotFoundError:
        raise TaskError("the file is missing", where=str(file)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot be read: {error}", where=str(file)) from error


def _infinite_keys(value: object, key: tuple[str | int, ...]) -> list[str]:
    """Return the keys of numbers that are infinite or not a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return [_key(key)]
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return [bad for name, item in items for bad in _infinite_keys(item, (*key, name))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = enumerate(cast("Sequence[object]", value))
        return [bad for index, item in parts for bad in _infinite_keys(item, (*key, index))]
    return []


def _line(text: str, location: tuple[str | int, ...]) -> str:
    number = line_of(text, location)
    return "" if number is None else f" (line {number})"


def _key(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location)
