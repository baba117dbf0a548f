"""The origins of a run's options, and the settings that a plan does not have."""

from collections.abc import Iterator, Mapping
from typing import Final

from benchflow_contracts import Task
from benchflow_kernel.resolve import Origin, Setting, to_json
from benchflow_kernel.resolve.settings import DEFAULT

from .options import RunOptions
from .planes import find_manifest

_SETTINGS: Final = {
    "agent": "role.agent.agent",
    "agent_import_path": "role.agent.agent",
    "model": "role.agent.model",
    "reasoning_effort": "role.agent.reasoning_effort",
    "agent_env": "role.agent.env",
    "agent_idle_timeout": "role.agent.idle_timeout_sec",
    "sandbox": "sandbox.provider",
    "base_url": "model",
    "skills_dir": "skills",
    "branch": "branch.kind",
    "branch_n": "branch.n",
    "branch_at": "branch.at",
    "branch_every": "branch.every",
    "branch_then": "branch.then",
    "branch_require": "branch.require",
    "branch_children": "branch.budget.max_children",
    "branch_depth": "branch.budget.max_depth",
    "branch_forks": "branch.budget.max_forks",
    "branch_concurrency": "branch.budget.concurrency",
    "branch_wall_sec": "branch.budget.wall_sec",
    "branch_tokens": "branch.budget.tokens",
    "branch_disk_mb": "branch.budget.disk_mb",
    "branch_memory_mb": "branch.budget.memory_mb",
    "keep": "keep.which",
    "keep_mb": "keep.budget_mb",
}
"""The setting of a plan that an option sets, if its name is another one."""

_OF_THE_OPERATOR: Final = {
    "sandbox": "sandbox.provider",
    "allow_unisolated": "sandbox.allow_unisolated",
    "pull": "sandbox.pull",
    "base_url": "endpoint.base_url",
    "api_key_env": "endpoint.api_key_env",
    "upstream": "endpoint.upstream",
    "gateway": "endpoint.gateway",
    "model_record_mb": "endpoint.model_record_mb",
    "user_model": "user.model",
    "reward_import_path": "reward.import_path",
    "environment_import_path": "environment.import_path",
    "skill_mode": "skill_mode",
    "offline": "offline",
    "timeout_multiplier": "timeout_multiplier",
    "force_build": "force_build",
    "trust_host_access": "trust_host_access",
}
"""Options that are not in a plan, and the names of their settings."""


def option_origins(options: RunOptions, flags: Mapping[str, Origin] | None) -> dict[str, Origin]:
    """Return the origin of each option that is not a default, by field.

    Without `flags`, the origin of an option that differs from its default is Python.
    """
    if flags is not None:
        return {
            name: origin for name, origin in flags.items() if name in type(options).model_fields
        }
    plain = RunOptions()
    return {
        name: Origin("python", name)
        for name in RunOptions.model_fields
        if getattr(options, name) != getattr(plain, name)
    }


def setting_origins(options: RunOptions, flags: Mapping[str, Origin] | None) -> dict[str, Origin]:
    """Return the origins of a plan's settings that options set, by setting."""
    given = option_origins(options, flags)
    return {_SETTINGS.get(name, name): origin for name, origin in given.items()}


def operator_settings(
    options: RunOptions, task: Task, flags: Mapping[str, Origin] | None
) -> Iterator[Setting]:
    """Return the settings that only the operator decides."""
    given = option_origins(options, flags)
    for field, name in _OF_THE_OPERATOR.items():
        value: object = getattr(options, field)
        origin = given.get(field, DEFAULT)
        if field == "sandbox" and options.sandbox_import_path is not None:
            value, origin = options.sandbox_name, given.get("sandbox_import_path", DEFAULT)
        yield Setting(name, to_json(value, field), origin)
    yield _manifest(options, task, given)


def _manifest(options: RunOptions, task: Task, given: Mapping[str, Origin]) -> Setting:
    manifest = options.environment_manifest or find_manifest(task)
    origin = DEFAULT
    if options.environment_manifest is not None:
        origin = given.get("environment_manifest", DEFAULT)
    elif manifest is not None:
        own = manifest.is_relative_to(task.path)
        origin = Origin("task", f"environment.toml of {'the task' if own else 'its benchmark'}")
    return Setting("environment.manifest", to_json(manifest), origin)
