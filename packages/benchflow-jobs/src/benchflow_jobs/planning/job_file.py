"""Read a `job.toml` or its like in YAML, with overrides, and check all of it."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from operator import eq
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import UsageError
from pydantic import ValidationError

from .job_config import JobConfig
from .problems import Key, Problem, TomlLines, did_you_mean, problem_of, raise_problems
from .variants import MAX_VARIANTS, all_variants, layer_problems, points_of, resolve_variants

_OVERRIDE_PART = re.compile(r"""\"[^\"]*\"|'[^']*'|[^.]+""")


@dataclass(frozen=True, slots=True)
class JobSource:
    """The tables of a job, and the place of each key."""

    tables: Mapping[str, Any]
    name: str = ""
    """The file."""
    lines: TomlLines | None = None
    overrides: Mapping[Key, str] = field(default_factory=dict[Key, str])
    """How each override was given."""

    def line(self, problem: Problem) -> int:
        """Return the line of a problem; 0 if it is not known."""
        return 0 if self.lines is None else self.lines.find(problem.key)

    def placed(self, problem: Problem) -> Problem:
        """Return the problem with its place."""
        for key, given in self.overrides.items():
            if all(map(eq, key, problem.key)):
                return replace(problem, where=given)
        line = self.line(problem)
        return replace(problem, where=f"{self.name}:{line}" if line else self.name)


def read_job(path: Path, overrides: Mapping[str, Any] | None = None) -> JobConfig:
    """Return the configuration in a TOML or YAML file.

    `overrides` are values by dotted key, such as `design.seed` or `run.agent.model`. They replace
    those of the file. A variant is named by its id: `variants.ID.agent.model`.

    Raises:
        UsageError: The file cannot be read, or is neither TOML nor YAML.
        JobConfigError: Keys or values are wrong. The error has all of them.
    """
    source = _with_overrides(_read(path), overrides or {})
    return parse_job(source)


def parse_job(source: JobSource) -> JobConfig:
    """Return the checked configuration of `source`.

    Raises:
        JobConfigError: Keys or values are wrong. The error has all of them.
    """
    config, problems = _validated(source.tables)
    if config is not None:
        problems += [*dataset_problems(config), *check_config(config)]
    raise_problems(map(source.placed, sorted(problems, key=source.line)))
    assert config is not None
    return config


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of `KEY=VALUE`. The value is TOML, or else a text.

    Raises:
        UsageError: The key or the value is missing.
    """
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise UsageError(f"{text!r} is not KEY=VALUE", hint="for example design.replications=5")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _read(path: Path) -> JobSource:
    readers = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
    reader = readers.get(path.suffix)
    if reader is None:
        raise UsageError(
            f"{str(path)!r} is not a TOML or YAML file",
            hint="give a file that ends in .toml, .yaml or .yml",
        )
    try:
        return reader(str(path), path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8 text", where=str(path), hint="save it as UTF-8") from error


def _read_toml(name: str, text: str) -> JobSource:
    try:
        return JobSource(tomllib.loads(text), name, TomlLines(text))
    except ValueError as error:
        match = re.search(r"at line (\d+)", str(error))
        line = match[1] if match else text.rstrip("\n").count("\n") + 1
        where = f"{name}:{line}"
        raise UsageError(f"not TOML: {error}", where=where, hint="correct the syntax") from error


def _read_yaml(name: str, text: str) -> JobSource:
    # Only a YAML file needs the parser, so the import is late.
    import yaml  # noqa: PLC0415

    try:
        # Through JSON: it refuses keys that are not texts, and tables that contain themselves.
        tables = json.loads(json.dumps(yaml.safe_load(text) or {}, default=str))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"not YAML: {error}", where=name, hint="correct the syntax") from error
    if not isinstance(tables, dict):
        raise UsageError("not a table", where=name, hint="begin with a key such as dataset:")
    return JobSource(cast("dict[str, Any]", tables), name)


def _with_overrides(source: JobSource, overrides: Mapping[str, Any]) -> JobSource:
    tables = deepcopy(dict(source.tables))
    places: dict[Key, str] = {}
    problems: list[Problem] = []
    for dotted, value in overrides.items():
        names = [part.strip("\"'") for part in _OVERRIDE_PART.findall(dotted)] or [dotted]
        where = f"override {dotted}"
        key: Key = ()
        table: object = tables
        for name in names[:-1]:
            key, table = _step(key, table, name)
        if isinstance(table, dict):
            cast("dict[str, Any]", table)[names[-1]] = value
            places[(*key, names[-1])] = where
        else:
            hint = 'a variant is named by its id: variants."ID".image'
            problems.append(Problem(key, "there is no such table", hint, where=where))
    raise_problems(problems)
    return replace(source, tables=tables, overrides=places)


def _step(key: Key, table: object, name: str) -> tuple[Key, object]:
    """Return the table called `name` below `table`; in a list, the one with this id."""
    if isinstance(table, dict):
        return (*key, name), cast("dict[str, object]", table).setdefault(name, {})
    for index, item in enumerate(cast("list[object]", table) if isinstance(table, list) else []):
        if isinstance(item, dict) and cast("dict[str, object]", item).get("id") == name:
            return (*key, index), cast("object", item)
    return key, None


def _validated(tables: Mapping[str, Any]) -> tuple[JobConfig | None, list[Problem]]:
    """Return the configuration, and the problems of single keys.

    Wrong keys are left out of the configuration, so that the other keys can be checked together.
    It is `None` if that does not suffice.
    """
    problems: list[Problem] = []
    rest = deepcopy(dict(tables))
    for _ in range(3):
        try:
            # Through JSON: strict mode then refuses "5" for 5, but accepts lists for tuples.
            text = json.dumps(rest, default=str)
            return JobConfig.model_validate_json(text, strict=True), problems
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                problems.append(problem_of(JobConfig, fault))
                _leave_out(rest, problems[-1].key)
    return None, problems


def _leave_out(tables: dict[str, Any], key: Key) -> None:
    """Delete the setting at `key`; a list is deleted as a whole. A wrong id is replaced."""
    owner, name = tables, str(key[0])
    table: object = tables
    for part in key:
        if isinstance(table, dict):
            owner, name = cast("dict[str, Any]", table), str(part)  # pyright: ignore[reportUnnecessaryCast]
            table = owner.get(name)
        elif isinstance(table, list) and isinstance(part, int):
            table = cast("list[object]", table)[part]
    owner.pop(name, None)
    if key[0] == "variants" and key[2:] == ("id",):
        owner[name] = f"unnamed-{key[1]}"


def check_config(config: JobConfig) -> list[Problem]:
    """Return the problems of values that are right one by one, and wrong together."""
    problems = [*layer_problems(config), *_design_problems(config)]
    if not any(problem.key[0] == "sweep" for problem in problems):
        problems += _id_problems(config)
    return problems or [*_learner_problems(config), *_resource_problems(config)]


def _design_problems(config: JobConfig) -> Iterator[Problem]:
    design = config.design
    points = points_of(config.sweep)
    if design.kind == "sweep" and "sweep" not in config.model_fields_set:
        yield Problem(("design", "kind"), "there is no [sweep]", "add [sweep]", design.kind)
    if config.sweep and design.kind != "sweep":
        reason = "the table is for design.kind = 'sweep'"
        yield Problem(("sweep",), reason, "set design.kind, or delete [sweep]")
    if points > MAX_VARIANTS:
        yield Problem(("sweep",), f"it has {points} points, more than {MAX_VARIANTS}")
    if design.kind == "regression" and len(config.variants) > 1:
        reason = f"a regression has one variant, and the job has {len(config.variants)}"
        yield Problem(("design", "kind"), reason, "compare variants with 'paired'", design.kind)


def dataset_problems(config: JobConfig) -> Iterator[Problem]:
    """Yield the problems of `[dataset]` that can be found without reading tasks."""
    dataset = config.dataset
    if not dataset.paths:
        yield Problem(("dataset", "paths"), "it is missing", "name a directory of tasks")
    elif dataset.name is not None and len(dataset.paths) > 1:
        reason = f"it is for one registry.json, and there are {len(dataset.paths)} paths"
        yield Problem(("dataset", "name"), reason, "leave the others out", dataset.name)


def _id_problems(config: JobConfig) -> Iterator[Problem]:
    first = len(all_variants(config)) - len(config.variants)
    ids = [each.id for each in all_variants(config)]
    for index, each in enumerate(config.variants):
        if each.id in ids[: first + index]:
            yield Problem(("variants", index, "id"), "it is used twice", "rename one", each.id)
    baseline = config.design.baseline
    if baseline is not None and baseline not in ids:
        hint = did_you_mean(baseline, ids) or f"the variants are {', '.join(ids[:8])}"
        yield Problem(("design", "baseline"), "there is no such variant", hint, baseline)


def _learner_problems(config: JobConfig) -> Iterator[Problem]:
    """Yield why the rollouts of a variant cannot share one learner store."""
    if not config.design.is_sequential:
        return
    key, schedule = ("design", "schedule"), config.design.schedule
    for each in resolve_variants(config):
        if each.run.branch is not None:
            reason = f"variant {each.id!r} forks, and each branch would leave another learner store"
            yield Problem(key, reason, "delete the table 'branch'", schedule)
    if not config.backend.is_local:
        reason = f"backend {config.backend.name!r} has no learner store: it is on this host"
        yield Problem(key, reason, "delete the table [backend]", schedule)


def _resource_problems(config: JobConfig) -> Iterator[Problem]:
    runs = {each.id: each.run for each in resolve_variants(config)}
    urls = {run.model.base_url or "" for run in runs.values()}
    for url, limit in config.concurrency.endpoints.items():
        if url not in urls:
            hint = did_you_mean(url, urls) or "write the URL as model.base_url has it"
            place = ("concurrency", "endpoints", url)
            yield Problem(place, "no variant has this endpoint", hint, limit)
    room = config.concurrency.memory_mb
    for variant, run in runs.items():
        needed = run.limits.memory_mb if run.limits else None
        if room is not None and needed is not None and needed > room:
            reason = f"variant {variant!r} needs {needed} MB for one sandbox"
            yield Problem(("concurrency", "memory_mb"), reason, "raise it", room)
