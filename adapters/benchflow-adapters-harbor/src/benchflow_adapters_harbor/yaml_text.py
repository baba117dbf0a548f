"""Parse the YAML of tasks, with limits on the expansion of aliases."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import yaml
from benchflow_contracts import TaskError

from .files import read_text

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 50_000
"""Largest number of values in a document. An alias counts as all values of its anchor."""


def read_yaml(
    root: Path, file: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> dict[str, object]:
    """Return the mapping in a YAML file of the task `root`.

    Only plain data is loaded: no tag creates an object. `loader` resolves plain scalars.

    Raises:
        TaskError: The file is missing, too large, not YAML, not a mapping, or expands too far.
    """
    text = read_text(root, file, cap=MAX_BYTES)
    try:
        _check_growth(yaml.parse(text, Loader=yaml.SafeLoader), file)
        data = yaml.load(text, Loader=loader)  # noqa: S506 - a safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark is not None else str(file)
        reason = getattr(error, "problem", None) or str(error)
        raise TaskError(f"not YAML: {reason}", where=where, hint="repair the file") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise TaskError(f"invalid value: {error}", where=str(file)) from error
    if not isinstance(data, dict):
        raise TaskError("must be a mapping", where=str(file))
    table = cast("dict[object, object]", data)
    return {str(key): value for key, value in table.items()}


def _check_growth(events: Iterator[yaml.Event], file: Path) -> None:
    """Check the number of nodes and the depth before anything is built."""
    sizes: dict[str, int] = {}
    # For each open collection: its anchor, and the number of nodes before it.
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        mark = event.start_mark
        where = f"{file}:{mark.line + 1}" if mark is not None else str(file)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise TaskError(f"alias {event.anchor!r} contains itself or nothing", where=where)
            total += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if total > MAX_NODES or len(opened) > MAX_DEPTH:
            raise TaskError(f"more than {MAX_NODES} values or {MAX_DEPTH} levels", where=where)


_FLOAT = (
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_KINDS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)", "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", r"~|null|Null|NULL", ["~", "n", "N"]),
    ("null", r"", [""]),
    ("merge", r"<<", "<"),
)
"""Each kind with a pattern of its texts and their possible first characters."""


class ComposeLoader(yaml.SafeLoader):
    """Load YAML as compose does: the core schema of YAML 1.2 and merge keys.

    `on` and `22:22` are texts.
    """


_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _kind, _pattern, _first in _KINDS:
    for _letter in _first:
        _tagged = (f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"))
        _resolvers.setdefault(_letter, []).append(_tagged)
ComposeLoader.yaml_implicit_resolvers = _resolvers
