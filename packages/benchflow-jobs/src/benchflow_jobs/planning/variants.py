"""The variants of a job: layers over the configuration of every rollout."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final, cast

from benchflow_engine.config import RunConfig, table_faults
from benchflow_engine.secrets import recorded_config
from pydantic import ValidationError

from .job_config import JobConfig, RunLayer, VariantConfig
from .problems import NO_VALUE, JobConfigError, Key, Problem, did_you_mean, plain

DEFAULT_VARIANT: Final = "default"
MAX_VARIANTS: Final = 65_535
"""The schedule has two bytes for the number of a variant."""
_OF_THE_JOB: Final = ("foreign_tasks", "forward_env")
"""Settings that the tasks are read with, once for all variants."""
_MAX_WORD: Final = 40
_NAMES: Final = {"agent": "name", "sandbox": "provider", "environment": "manifest"}
"""The setting of each table that an import path stands for."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the configurations that are compared."""

    id: str
    run: RunConfig
    bindings: Mapping[str, str | int | float | bool]
    image: str | None
    """Instead of the tasks' images."""
    image_origin: str
    """The key that sets the image; empty without one."""

    def recorded(self, public: Sequence[str] = ()) -> dict[str, Any]:
        """Return the variant as JSON, without secrets."""
        return {
            "run": recorded_config(self.run, public),
            "bindings": dict(self.bindings),
            "image": self.image,
        }


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of `base` with those of `over`. Lists and other fork policies are replaced.

    The name of an agent, and the like of sandboxes and environments, replaces an import path.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            tables = cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", below)
            merged[key] = _merged(key, *tables)
        else:
            merged[key] = value
    return merged


def _merged(key: str, over: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    if key in {"branch", "then"} and over.get("kind", base.get("kind")) != base.get("kind"):
        return dict(over)
    replaced = "import_path" if _NAMES.get(key) in over else None
    return laid_over({name: base[name] for name in base if name != replaced}, over)


def tables_of(run: RunConfig) -> dict[str, Any]:
    """Return the tables of a configuration, without defaults."""
    tables = run.model_dump(mode="json", exclude_defaults=True)
    # The kind of a policy is a default, too.
    return tables if run.branch is None else {**tables, "branch": run.branch.model_dump()}


def all_variants(config: JobConfig) -> list[VariantConfig]:
    """Return the points of the sweep and the variants, or else the default variant."""
    found = [*_swept(config.sweep), *config.variants]
    return found or [VariantConfig(id=DEFAULT_VARIANT)]


def resolve_variants(config: JobConfig) -> tuple[Variant, ...]:
    """Return each variant with its whole configuration; see `resolve_variant`."""
    points = len(_swept(config.sweep))
    return tuple(
        resolve_variant(config.run, each, "sweep" if number < points else f"variants.{each.id}")
        for number, each in enumerate(all_variants(config))
    )


def resolve_variant(base: RunLayer, layer: VariantConfig, place: str = "variants") -> Variant:
    """Return a variant over the configuration of every rollout. `place` is its table.

    Raises:
        JobConfigError: A value is wrong, or the values of a sweep do not fit together.
    """
    tables = laid_over(base.tables, layer.tables)
    try:
        run = RunConfig.model_validate(tables)
    except ValidationError as error:
        keys, message = table_faults(tables)[0]
        raise JobConfigError([Problem(("variants", layer.id, *keys), message)]) from error
    origin = "run.image" if base.image else ""
    return Variant(
        id=layer.id,
        run=run,
        bindings={**base.bindings, **layer.bindings},
        image=layer.image or base.image,
        image_origin=f"{place}.image" if layer.image else origin,
    )


def points_of(grid: Mapping[str, Sequence[Any]]) -> int:
    """Return the number of combinations of a sweep."""
    return prod(len(values) for values in grid.values()) if grid else 0


def _swept(grid: Mapping[str, Sequence[Any]]) -> list[VariantConfig]:
    if not 0 < points_of(grid) <= MAX_VARIANTS:
        return []
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    lasts = Counter(key.rsplit(".", 1)[-1] for key in grid)
    short = {key: last if lasts[last := key.rsplit(".", 1)[-1]] == 1 else key for key in grid}
    names = [",".join(f"{short[k]}={_word(v)}" for k, v in point.items()) for point in points]
    if max(map(len, names)) > 200 or len(set(names)) < len(names):
        names = [f"point-{number}" for number in range(len(points))]
    return [
        VariantConfig.model_validate({"id": name, **_tables(point)})
        for name, point in zip(names, points, strict=True)
    ]


def _word(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-")[:_MAX_WORD]


def _tables(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables that have the values of `point` at their dotted keys."""
    tables: dict[str, Any] = {}
    for dotted, value in point.items():
        *above, last = dotted.split(".")
        tables = laid_over(tables, _nested(above, {last: value}))
    return tables


def _nested(above: Sequence[str], table: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(above):
        table = {name: table}
    return table


def layer_problems(config: JobConfig) -> Iterator[Problem]:
    """Yield the problems of the configurations, each at the layer that sets the value."""
    base = config.run.tables
    yield from _at_layer(("run",), {}, base)
    for index, variant in enumerate(config.variants):
        yield from _at_layer(("variants", index), base, variant.tables)
        for name in _OF_THE_JOB:
            if name in variant.tables:
                yield _of_the_job(("variants", index, name))
    for dotted, values in config.sweep.items():
        yield from _axis_problems(config, dotted, values)


def _at_layer(place: Key, base: Mapping[str, Any], layer: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of `layer` over `base`. Those of `base` alone belong to `base`."""
    earlier = set(_faults(base)) if base else set[tuple[tuple[str, ...], str]]()
    for keys, message in _faults(laid_over(base, layer)):
        if (keys, message) not in earlier:
            reason, _, near = plain(message).partition("; did you mean ")
            hint = f"did you mean {near}" if near else ""
            yield Problem((*place, *keys), reason, hint, _value(layer, keys, reason))


def _faults(tables: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Return the faults of tables, and a fork with more children than its budget allows."""
    faults = table_faults(tables)
    policy = None if faults else RunConfig.model_validate(tables).branch
    if policy is not None and getattr(policy, "n", 0) > policy.budget.max_children:
        most = policy.budget.max_children
        faults.append((("branch", "n"), f"it is more than branch.budget.max_children, {most}"))
    return faults


def _value(layer: object, keys: Sequence[str], reason: str) -> object:
    """Return the wrong value; `NO_VALUE` for a key that is itself wrong."""
    for key in keys:
        if reason == "unknown key" or not isinstance(layer, Mapping) or key not in layer:
            return NO_VALUE
        layer = cast("Mapping[str, object]", layer)[key]
    return layer


def _of_the_job(place: Key) -> Problem:
    return Problem(place, "tasks are read with it once for all variants", "set it in [run]")


def _axis_problems(config: JobConfig, dotted: str, values: Sequence[Any]) -> Iterator[Problem]:
    place: Key = ("sweep", dotted)
    first = dotted.partition(".")[0]
    roots = (*RunConfig.model_fields, "image", "bindings")
    if first not in roots:
        yield Problem(place, "unknown key", did_you_mean(first, roots))
        return
    if dotted.startswith("agent.env"):
        reason = "the value may be a secret, and the name of a variant shows it"
        yield Problem(place, reason, "sweep over bindings.NAME")
    if first in _OF_THE_JOB:
        yield _of_the_job(place)
    if len({repr(value) for value in values}) < len(values):
        yield Problem(place, "it has a value twice", "leave one out", list(values))
    for value in values:
        yield from _point_problems(config.run, dotted, value)


def _point_problems(base: RunLayer, dotted: str, value: object) -> Iterator[Problem]:
    tables = _tables({dotted: value})
    try:
        layer = RunLayer.model_validate(tables, strict=True)
    except ValidationError as error:
        reason = plain(error.errors()[0]["msg"])
        yield Problem(("sweep", dotted), reason, "", value)
        return
    for each in _at_layer((), base.tables, layer.tables):
        yield Problem(("sweep", dotted), each.reason, each.hint, value)
