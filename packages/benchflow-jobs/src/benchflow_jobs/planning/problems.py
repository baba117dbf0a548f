"""The problems of a job's configuration, each with its place and its remedy."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final, get_args

from benchflow_contracts import UsageError
from benchflow_engine.config import RunConfig
from pydantic import BaseModel

Key = tuple[str | int, ...]
"""The place of a value in the tables of a file."""

NO_VALUE: Final = object()
_MAX_CHARS = 60
_HINT: Final = "docs/reference/job-toml.md has every key"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a job's configuration."""

    key: Key
    reason: str
    hint: str = ""
    value: object = NO_VALUE
    where: str = ""
    """`file:line`, or the override that sets the value."""

    @property
    def dotted(self) -> str:
        """The key in TOML terms, such as `variants[1].agent.name`."""
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.key)
        return text.removeprefix(".")

    def __str__(self) -> str:
        """Return the place, the key, the value and the reason."""
        shown = "" if self.value is NO_VALUE or "env" in self.key else _shown(self.value)
        return ": ".join(part for part in (self.where, self.dotted + shown, self.reason) if part)


def _shown(value: object) -> str:
    text = repr(value)
    return f" = {text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + '…'}"


class JobConfigError(UsageError):
    """The configuration of a job has problems. All of them are in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple({str(each): each for each in problems}.values())
        first = self.problems[0]
        if len(self.problems) == 1:
            hint = first.hint or _HINT
            super().__init__(str(replace(first, where="")), hint=hint, where=first.where)
            return
        lines = (f"{each} ({each.hint})" if each.hint else str(each) for each in self.problems)
        super().__init__(
            "\n".join([f"{len(self.problems)} problems in the job", *lines]),
            hint=f"correct them all; {_HINT}",
        )


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise `JobConfigError` if there is a problem."""
    found = tuple(problems)
    if found:
        raise JobConfigError(found)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint with the nearest known word; empty if none is near."""
    near = get_close_matches(str(word), list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def problem_of(model: type[BaseModel], fault: Mapping[str, Any]) -> Problem:
    """Return the problem for one fault of pydantic."""
    key: Key = tuple(part for part in fault["loc"] if part not in {"tables", "[key]"})
    value = fault["input"]
    match fault["type"]:
        case "extra_forbidden":
            return Problem(key, "unknown key", did_you_mean(key[-1], _keys(model, key[:-1])))
        case "missing":
            return Problem(key, "it is missing", f"add {key[-1]!r}")
        case "literal_error":
            expected = str(fault["ctx"]["expected"])
            hint = did_you_mean(value, re.findall(r"'([^']*)'", expected))
            return Problem(key, f"it is not {expected}", hint, value)
        case "model_type" | "mapping_type" | "dict_type":
            name = key[-1] if key else "key"
            return Problem(key, "it is not a table", f"write it as [{name}]", value)
        case _:
            return Problem(key, plain(fault["msg"]), "", value)


def plain(message: str) -> str:
    """Return a message of pydantic in the words of other problems."""
    text = message.removeprefix("Value error, ").replace("Input should", "it should")
    return text.replace("String should", "it should")


def _keys(model: type[BaseModel], above: Key) -> list[str]:
    """Return the keys of the table at `above`."""
    table = model
    for part in above:
        field = table.model_fields.get(str(part))
        if field is not None:
            table = _model(field.annotation) or table
    own = [name for name in table.model_fields if name != "tables"]
    return own + (list(RunConfig.model_fields) if "tables" in table.model_fields else [])


def _model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model(inner))), None)


_PART = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_SETTING = re.compile(rf"\s*({_DOTTED})\s*=")


class TomlLines:
    """The line of each key of a TOML file."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        tables: Counter[Key] = Counter()
        here: Key = ()
        for number, line in enumerate(text.splitlines(), 1):
            key: Key = ()
            if header := _HEADER.match(line):
                key = here = _indexed(_names(header[2]), tables, opens=header[1] == "[[")
            elif setting := _SETTING.match(line):
                key = (*here, *_names(setting[1]))
            for length in range(1, len(key) + 1):
                self._lines.setdefault(key[:length], number)

    def find(self, key: Key) -> int:
        """Return the line that sets `key`, or the nearest table above it; 0 if there is none."""
        prefixes = (key[:length] for length in range(len(key), 0, -1))
        return next((self._lines[each] for each in prefixes if each in self._lines), 0)


def _names(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, dotted)]


def _indexed(names: Sequence[str], tables: "Counter[Key]", *, opens: bool) -> Key:
    """Return the key of a header, with the number of each array's last table."""
    key: Key = ()
    for place, name in enumerate(names, 1):
        key = (*key, name)
        if opens and place == len(names):
            tables[key] += 1
        if key in tables:
            key = (*key, tables[key] - 1)
    return key
