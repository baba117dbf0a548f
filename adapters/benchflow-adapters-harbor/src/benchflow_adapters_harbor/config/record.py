"""The base of what is read from files that others wrote for Harbor."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A duration. Harbor takes negative, infinite and undefined ones too; nothing can wait for them."""


class Record(BaseModel):
    """A frozen record. Unknown keys are passed over, as Harbor does; `unknown_keys` names them."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    legacy: ClassVar[frozenset[str]] = frozenset()
    """Keys of older schemas that the record turns into today's fields."""


def as_table(data: object) -> dict[str, object] | None:
    """Return a copy of a table that a before-validator may change; `None` for anything else."""
    if not isinstance(data, Mapping):
        return None
    return dict(cast("Mapping[str, object]", data))
