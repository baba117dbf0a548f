"""Keys that nothing reads: most often spelling mistakes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from .record import Record


def unknown_keys(record: Record, raw: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of `raw` that no field of `record` was read from."""
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
