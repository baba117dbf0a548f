"""Read a task's files: limited text, TOML, and models with the key of each fault."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from benchflow_contracts import Model, TaskError
from pydantic import ValidationError

from .caps import MAX_BYTES, check_caps
from .faults import fault_of, line_of

_MAX_INSTRUCTION_BYTES = 1024 * 1024

_Read = TypeVar("_Read", bound=Model)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a file. All its numbers are finite.

    Raises:
        TaskError: The file is missing, too large, nested too deeply or not TOML.
    """
    data = _parse(_read(file, MAX_BYTES), str(file))
    problems = _not_finite(data, ())
    if problems:
        raise TaskError("must be a finite number", where=f"{file}:{problems[0]}")
    return data


def validated(
    model: type[_Read], data: Mapping[str, Any], where: str, *, file: Path | None = None
) -> _Read:
    """Return `data` as a model, without conversion between types.

    Raises:
        TaskError: A key is wrong. The message names each one, after `where`, and its line in
            `file`.
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
        found = re.search(r"at line (\d+)", str(error))
        line = found.group(1) if found else text.rstrip("\n").count("\n") + 1
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


def _not_finite(value: object, key: tuple[str | int, ...]) -> list[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return [_key(key)]
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return [found for name, item in items for found in _not_finite(item, (*key, name))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = enumerate(cast("Sequence[object]", value))
        return [found for index, item in parts for found in _not_finite(item, (*key, index))]
    return []


def _line(text: str, location: tuple[str | int, ...]) -> str:
    number = line_of(text, location)
    return "" if number is None else f" (line {number})"


def _key(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location)
