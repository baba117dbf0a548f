"""The settings of a run that a plan does not have, and the origins of all settings."""

from collections.abc import Iterator, Mapping
from typing import cast

from benchflow_contracts import Model, Task
from benchflow_kernel import RolloutSettings
from benchflow_kernel.resolve import Origin, Setting, to_json
from benchflow_kernel.resolve.settings import DEFAULT

from .config import RunConfig
from .planes import find_manifest

_IN_A_PLAN = {
    "agent.": "role.agent.",
    "agent.name": "role.agent.agent",
    "agent.import_path": "role.agent.agent",
    "skills_dir": "skills",
}
"""Settings with another name in a plan."""

_RESOLVED = ("sandbox.provider", "sandbox.import_path", "environment.manifest")
"""Settings whose effective value another setting or the task may decide."""


def python_origins(config: RunConfig) -> dict[str, Origin]:
    """Return the origin of each setting that is not a default."""
    return {name: Origin("python", f"RunConfig.{name}") for name in _changed(config, RunConfig())}


def _changed(table: Model, default: object, prefix: str = "") -> Iterator[str]:
    for field in type(table).model_fields:
        value, plain = getattr(table, field), getattr(default, field, None)
        if isinstance(value, Model):
            yield from _changed(value, plain, f"{prefix}{field}.")
        elif value != plain:
            yield f"{prefix}{field}"


def plan_origins(given: Mapping[str, Origin]) -> dict[str, Origin]:
    """Return the origins of settings by the names that they have in a plan."""
    return {_name_in_a_plan(name): origin for name, origin in given.items()}


def _name_in_a_plan(name: str) -> str:
    prefix, dot, field = name.partition(".")
    return _IN_A_PLAN.get(name) or _IN_A_PLAN.get(prefix + dot, prefix + dot) + field


def operator_settings(
    config: RunConfig, task: Task, given: Mapping[str, Origin]
) -> Iterator[Setting]:
    """Return the settings that only the operator decides."""
    own = [name for name in RunConfig.model_fields if name not in RolloutSettings.model_fields]
    for name in ("model", *(name for name in own if name != "agent")):
        table = cast("Model", getattr(config, name))
        for field in type(table).model_fields:
            if f"{name}.{field}" not in _RESOLVED:
                yield from _settings(f"{name}.{field}", getattr(table, field), given)
    yield _provider(config, given)
    yield _manifest(config, task, given)
    yield _setting("user.model", config.user.model, given)
    for name in ("skill_mode", "offline", "timeout_multiplier"):
        yield _setting(name, getattr(config, name), given)


def _settings(name: str, value: object, given: Mapping[str, Origin]) -> Iterator[Setting]:
    if isinstance(value, Model):
        for field in type(value).model_fields:
            yield from _settings(f"{name}.{field}", getattr(value, field), given)
    else:
        yield _setting(name, value, given)


def _setting(name: str, value: object, given: Mapping[str, Origin]) -> Setting:
    return Setting(name, to_json(value, name.rpartition(".")[2]), given.get(name, DEFAULT))


def _provider(config: RunConfig, given: Mapping[str, Origin]) -> Setting:
    """Return the sandbox provider: an import path replaces the name."""
    field = "provider" if config.sandbox.import_path is None else "import_path"
    origin = given.get(f"sandbox.{field}", DEFAULT)
    return Setting("sandbox.provider", config.sandbox.label, origin)


def _manifest(config: RunConfig, task: Task, given: Mapping[str, Origin]) -> Setting:
    manifest = config.environment.manifest or find_manifest(task)
    origin = DEFAULT
    if config.environment.manifest is not None:
        origin = given.get("environment.manifest", DEFAULT)
    elif manifest is not None:
        own = manifest.is_relative_to(task.path)
        origin = Origin("task", f"environment.toml of {'the task' if own else 'its benchmark'}")
    return Setting("environment.manifest", to_json(manifest), origin)
