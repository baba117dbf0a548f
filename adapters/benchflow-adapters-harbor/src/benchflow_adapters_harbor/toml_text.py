"""Parse untrusted TOML into a record."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

from benchflow_contracts import TaskError
from pydantic import ValidationError

from .config import Record
from .files import read_text

MAX_BYTES = 256 * 1024
_SHOWN = 20

# The parser's time grows with the square of a dotted key's length. The possessive quantifiers
# keep this search linear.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{64}}")

AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_toml(root: Path, file: Path) -> dict[str, object]:
    """Return the tables of a TOML file of the task `root`.

    Raises:
        TaskError: The file is missing, too large or not TOML. `where` has the line.
    """
    text = read_text(root, file, cap=MAX_BYTES)
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise TaskError("a dotted key with more than 64 names", where=f"{file}:{line}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TaskError("nested too deeply", where=str(file)) from None
    except ValueError as error:
        line_of = re.search(r"at line (\d+)", str(error))
        where = f"{file}:{line_of.group(1)}" if line_of else str(file)
        raise TaskError(f"not TOML: {error}", where=where, hint="repair the file") from error


def validate(kind: type[AnyRecord], data: object, file: Path) -> AnyRecord:
    """Return `data` as a record.

    Raises:
        TaskError: Values are missing or wrong. Each has one line with `file:key`.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = [
            (f"{file}:{'.'.join(map(str, item['loc'])) or kind.__name__}", _message(item["msg"]))
            for item in error.errors(include_url=False, include_input=False)
        ]
        if len(found) == 1:
            (where, problem), hint = found[0], "correct the value"
            raise TaskError(problem, where=where, hint=hint) from error
        lines = [": ".join(pair) for pair in found[:_SHOWN]]
        lines += [f"{file}: {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise TaskError("\n".join(lines), hint="correct the values") from error


def _message(message: str) -> str:
    return message.removeprefix("Value error, ")[:300]
