"""More time, or less, than a task gives."""

from typing import Final, TypeVar, cast

from benchflow_contracts import (
    ImageRecipe,
    Model,
    Task,
    TaskAgent,
    TaskEnvironment,
    TaskVerifier,
)

_SECONDS: Final[dict[type[Model], str]] = {
    ImageRecipe: "timeout_sec",
    TaskAgent: "timeout_sec",
    TaskEnvironment: "image_timeout_sec",
    TaskVerifier: "timeout_sec",
}
_M = TypeVar("_M", bound=Model)


def with_patience(task: Task, factor: float) -> Task:
    """Return `task` with `factor` times the seconds of its agent, its tests and its images.

    Healthchecks, setup commands and collect hooks keep theirs. The digest stays.
    """
    return task if factor == 1 else _times(task, factor)


def _times(part: _M, factor: float) -> _M:
    seconds = _SECONDS.get(type(part))

    def new(name: str, value: object) -> object:
        if isinstance(value, Model):
            return _times(value, factor)
        if isinstance(value, tuple):
            return tuple(new("", each) for each in cast("tuple[object, ...]", value))
        return value * factor if name == seconds and isinstance(value, int | float) else value

    update = {name: new(name, getattr(part, name)) for name in type(part).model_fields}
    return part.model_copy(update=update)
