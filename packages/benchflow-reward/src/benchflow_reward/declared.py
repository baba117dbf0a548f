"""`[[verifier.rewards]]` of task.toml: reward functions as data."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from benchflow_contracts import Model, Reward, TaskError
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from .functions import (
    AskedUser,
    ExactMatch,
    JsonMatch,
    MemoryFiles,
    ReasoningMentions,
    RegexMatch,
    StateQuery,
)
from .paths import absolute_path
from .rubric import MAX_WEIGHT


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


BoxPath = Annotated[str, AfterValidator(absolute_path)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Glob = Annotated[str, Field(pattern=r"^[^/].*$")]


class _Declared(Model):
    weight: float = Field(default=1.0, ge=0, le=MAX_WEIGHT)
    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_.-]{0,63}$")

    def fields(self) -> dict[str, Any]:
        """Return the arguments of the reward function."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        return {k: v for k, v in given.items() if k not in ("kind", "weight") and v is not None}


class _Exact(_Declared):
    kind: Literal["exact"]
    expected: str
    file: BoxPath | None = None
    strip: bool = True
    ignore_case: bool = False


class _Regex(_Declared):
    kind: Literal["regex"]
    pattern: Pattern
    file: BoxPath | None = None
    ignore_case: bool = False


class _Json(_Declared):
    kind: Literal["json"]
    expected: Any
    file: BoxPath | None = None
    pointer: str = Field(default="", pattern=r"^(/.*)?$")
    subset: bool = False


class _State(_Declared):
    kind: Literal["state"]
    database: str
    table: str
    where: Mapping[str, Any] = {}
    count: int | None = Field(default=None, ge=0)
    equals: Mapping[str, Any] = {}


class _Asked(_Declared):
    kind: Literal["asked_user"]
    expected: bool = True
    match: Pattern | None = None
    wrong: float = Field(default=0.0, allow_inf_nan=False)


class _Reasoning(_Declared):
    kind: Literal["reasoning"]
    pattern: Pattern
    expected: bool = True
    ignore_case: bool = True


class _Memory(_Declared):
    kind: Literal["memory"]
    directory: BoxPath
    files: Glob = "*"
    pattern: Pattern | None = None


_KINDS: Mapping[str, tuple[type[_Declared], Any]] = {
    "exact": (_Exact, ExactMatch),
    "regex": (_Regex, RegexMatch),
    "json": (_Json, JsonMatch),
    "state": (_State, StateQuery),
    "asked_user": (_Asked, AskedUser),
    "reasoning": (_Reasoning, ReasoningMentions),
    "memory": (_Memory, MemoryFiles),
}

_Table = TypeVar("_Table", bound=BaseModel)


def declared_rewards(tables: Sequence[Mapping[str, Any]]) -> list[tuple[Reward, float]]:
    """Return each declared reward function with its weight (1 when not given).

    Raises:
        TaskError: `task.toml:verifier.rewards[i].key`, at the first offence.
    """
    declared = [_one(table, f"task.toml:verifier.rewards[{i}]") for i, table in enumerate(tables)]
    names: set[str] = set()
    for index, (reward, _) in enumerate(declared):
        if reward.name in names:
            raise TaskError(
                f"two rewards are named {reward.name!r}",
                hint="give each its own name",
                where=f"task.toml:verifier.rewards[{index}].name",
            )
        names.add(reward.name)
    return declared


def _one(table: Mapping[str, Any], where: str) -> tuple[Reward, float]:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise TaskError(
            f"{kind!r} is not a kind of reward; known: {sorted(_KINDS)!r}", where=f"{where}.kind"
        )
    model, reward = _KINDS[kind]
    declared = read_table(model, table, where)
    return reward(**declared.fields()), declared.weight


def read_table(model: type[_Table], table: Mapping[str, Any], where: str) -> _Table:
    """Validate `table`. Raises `TaskError` that names the first wrong key."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(first["msg"], where=f"{where}.{key}" if key else where) from error
