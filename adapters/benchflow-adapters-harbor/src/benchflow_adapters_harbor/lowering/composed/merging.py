"""What a service that extends another comes to."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from .service import ComposeService, Volume

AnyModel = TypeVar("AnyModel", bound=BaseModel)
_ADDED = {"tmpfs", "env_file", "secrets", "configs", "profiles"}
"""Lists of a service whose entries are added up; of another list the later one holds."""


def merged(base: ComposeService, over: ComposeService) -> ComposeService:
    """Return `base` with what `over` says laid over it, as compose merges services."""
    found = _laid_over(base, over)
    if "volumes" in over.model_fields_set:
        by_target: dict[str, Volume] = {
            volume.target: volume for volume in (*base.volumes, *over.volumes)
        }
        found = found.model_copy(update={"volumes": tuple(by_target.values())})
    return found


def _laid_over(base: AnyModel, over: AnyModel) -> AnyModel:
    update = {
        name: _both(name, getattr(base, name), getattr(over, name))
        for name in over.model_fields_set
    }
    return base.model_copy(update=update)


def _both(name: str, old: object, new: object) -> object:
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        return _laid_over(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        known = {key: _both("", before.get(key), value) for key, value in after.items()}
        return {**before, **known}
    if name in _ADDED:
        added = (*cast("tuple[Any, ...]", old), *cast("tuple[Any, ...]", new))
        return tuple(dict.fromkeys(added))
    return new
