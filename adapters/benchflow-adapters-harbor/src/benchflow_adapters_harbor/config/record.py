"""The base of the records that are read from files for Harbor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A duration. Harbor also accepts negative, infinite and NaN ones; nothing can wait for those."""


class Record(BaseModel):
    """A frozen record. Like Harbor, it ignores unknown keys; `unknown_keys` lists them."""

    # Most tables are validated only as a part of the whole file, which has its own validator.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    legacy: ClassVar[frozenset[str]] = frozenset()
    """Keys of older schemas that the record converts into current fields."""


def as_table(data: object) -> dict[str, object] | None:
    """Return a copy of a table for a before-validator to change; None for anything else."""
    if not isinstance(data, Mapping):
        return None
    return dict(cast("Mapping[str, object]", data))


def unknown_keys(record: Record, raw: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of `raw` that no field of `record` uses."""
    fields = type(record).model_fields
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if key not in fields:
            if key not in record.legacy:
                yield name
            continue
        yield from _below(getattr(record, key), value, name)


def _below(field: object, value: object, name: str) -> Iterator[str]:
    if isinstance(field, Record) and isinstance(value, Mapping):
        yield from unknown_keys(field, cast("Mapping[str, object]", value), f"{name}.")
    elif isinstance(field, tuple) and isinstance(value, Sequence):
        pairs = zip(
            cast("tuple[object, ...]", field), cast("Sequence[object]", value), strict=False
        )
        for index, (item, raw) in enumerate(pairs):
            yield from _below(item, raw, f"{name}.{index}")
