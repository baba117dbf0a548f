"""The flags of a rollout: a flat view of RunConfig, generated from one table."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from benchflow_contracts import Model, UsageError
from benchflow_kernel import BranchPolicy
from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from .config import RunConfig, location_in

FLAGS: Final = {
    "agent": "agent.name",
    "agent_import_path": "agent.import_path",
    "agent_env": "agent.env",
    "agent_idle_timeout": "agent.idle_timeout_sec",
    "model": "agent.model",
    "reasoning_effort": "agent.reasoning_effort",
    "base_url": "model.base_url",
    "api_key_env": "model.api_key_env",
    "upstream": "model.upstream",
    "require_tokens": "model.require_tokens",
    "gateway": "model.gateway",
    "model_access": "model.access.mode",
    "gateway_url": "model.access.gateway_url",
    "gateway_bind": "model.access.bind",
    "tls_cert": "model.access.tls_cert",
    "tls_key": "model.access.tls_key",
    "token_sec": "model.access.token_sec",
    "token_calls": "model.access.token_calls",
    "token_tokens": "model.access.token_tokens",
    "token_usd": "model.access.token_usd",
    "model_record_mb": "model.record_mb",
    "usd_per_mtok": "model.usd_per_mtok",
    "sandbox": "sandbox.provider",
    "sandbox_import_path": "sandbox.import_path",
    "sandbox_host": "sandbox.host",
    "allow_unisolated": "sandbox.allow_unisolated",
    "timeout_multiplier": "timeout_multiplier",
    "pull": "sandbox.pull",
    "environment_manifest": "environment.manifest",
    "environment_import_path": "environment.import_path",
    "reward_import_path": "reward.import_path",
    "group_reward_import_path": "reward.group_import_path",
    "skill_mode": "skill_mode",
    "skills_dir": "skills_dir",
    "isolation": "isolation",
    "offline": "offline",
    "forward_env": "forward_env",
    "force_build": "foreign_tasks.force_build",
    "trust_host_access": "foreign_tasks.trust_host_access",
    "expects_changes": "expects_changes",
    "reward_files": "reward_files",
    "user": "user.mode",
    "user_model": "user.model",
    "judge_url": "judge.base_url",
    "judge_model": "judge.model",
    "judge_api_key_env": "judge.api_key_env",
    "branch": "branch.kind",
    "branch_n": "branch.n",
    "branch_at": "branch.at",
    "branch_every": "branch.every",
    "branch_at_call": "branch.at_call",
    "branch_every_call": "branch.every_call",
    "branch_call_share": "branch.call_share",
    "branch_seed": "branch.seed",
    "branch_then": "branch.then.kind",
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
    "capture_state": "capture_state",
    "seed": "seed",
    "deadline_sec": "deadline_sec",
}
"""The name of each flag, with `_` for `-`, and the setting of RunConfig that it sets."""

_HELP: Final = {
    "branch": "Fork policy (default: none): at each question (`ask-user`), once into a group"
    " (`group`), at every turn and question to estimate V (`value`), or to continue from the best"
    " child (`best-of`).",
    "branch_then": "Fork policy of the children (default: the same policy, within --branch-depth).",
}
"""The help of the flags whose setting has no text of its own."""

BranchKind = Literal["ask-user", "group", "value", "best-of"]
Tables = Mapping[str, Any]


class _Flags(Model):
    def given(self) -> dict[str, Any]:
        """Return the flags that were given, by name."""
        return {name: getattr(self, name) for name in FLAGS if name in self.model_fields_set}


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


_POLICIES: Final = {
    cast("str", policy.model_fields["kind"].default): policy for policy in _models(BranchPolicy)
}


def _table(path: str) -> type[BaseModel]:
    """Return the table of RunConfig with the field at `path`; in a union, the first one with it."""
    *above, last = path.split(".")
    tables: list[type[BaseModel]] = [RunConfig]
    for name in above:
        table = next(table for table in tables if name in table.model_fields)
        tables = list(_models(table.model_fields[name].annotation))
    return next(table for table in tables if last in table.model_fields)


def _field(path: str) -> FieldInfo:
    return _table(path).model_fields[path.rpartition(".")[2]]


def declaration(name: str) -> tuple[type[BaseModel], str]:
    """Return the model and the field that declare a flag. The text below the field is its help."""
    path = FLAGS[name]
    field = path.rpartition(".")[2]
    return next(m for m in _table(path).mro() if field in m.__annotations__), field


def _definition(name: str, path: str) -> tuple[object, Any]:
    if path.endswith(".kind"):
        return BranchKind | None, Field(default=None, description=_HELP[name])
    field = _field(path)
    return field.annotation, copy(field)


if TYPE_CHECKING:

    class RunFlags(_Flags):
        """One field for each flag."""
else:
    RunFlags = create_model(
        "RunFlags",
        __base__=_Flags,
        **{name: _definition(name, path) for name, path in FLAGS.items()},
    )


def flag_name(name: str) -> str:
    """Return the flag as the user types it."""
    return "--" + name.replace("_", "-")


def run_config(base: RunConfig | Tables | None = None, /, **flags: Any) -> RunConfig:  # noqa: ANN401
    """Return `base` with the settings of flags, such as `agent="nop"` or `branch_n=2`.

    Raises:
        UsageError: A flag is unknown or has a wrong value, or two flags contradict each other.
    """
    try:
        given = RunFlags.model_validate(flags)
    except ValidationError as error:
        fault = error.errors()[0]
        name, message = str(fault["loc"][0]), fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            near = get_close_matches(name, FLAGS, n=1)
            message = f"unknown option; did you mean {near[0]!r}?" if near else "unknown option"
        hint = "options are the flags of `bench run`, such as branch_n for --branch-n"
        raise UsageError(f"option {name!r}: {message}", hint=hint) from error
    return with_flags(RunConfig() if base is None else base, given)


def with_flags(base: RunConfig | Tables, flags: RunFlags) -> RunConfig:
    """Return `base` with the settings of the flags that were given.

    Raises:
        UsageError: A flag concerns forks without a fork policy, or contradicts another one.
    """
    tables: dict[str, Any] = {**(base.model_dump() if isinstance(base, RunConfig) else base)}
    given = flags.given()
    for name, value in given.items():
        if not FLAGS[name].startswith("branch."):
            _set(tables, FLAGS[name], value)
    tables["branch"] = _branch(tables.get("branch"), given)
    try:
        config = RunConfig.model_validate(tables)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(location_in(tables, fault["loc"]))
        raise UsageError(f"{key}: {fault['msg']}") from error
    _check_children(config.branch)
    return config


def _set(tables: dict[str, Any], path: str, value: object) -> None:
    *above, last = path.split(".")
    for name in above:
        tables[name] = tables = {**(tables.get(name) or {})}
    if isinstance(value, Mapping):
        tables[last] = {**tables.get(last, {}), **cast("Tables", value)}
    else:
        tables[last] = value


def _branch(base: Tables | None, flags: Tables) -> Tables | None:
    """Return the table of the fork policy.

    A flag is also for the policy of the children that `--branch-then` names. A policy leaves out
    the settings of `base` that it does not have.

    Raises:
        UsageError: A flag needs a policy and none is given, or no named policy has its setting.
    """
    given = {name: flags[name] for name in flags if FLAGS[name].startswith("branch.")}
    if not given:
        return base
    kind = given.pop("branch", None if base is None else base["kind"])
    if kind is None:
        if given:
            name = flag_name(next(iter(given)))
            raise UsageError(f"{name} needs --branch", hint="give the fork policy of the root")
        return None
    then = given.pop("branch_then", None)
    pool: dict[str, Any] = dict(base or {})
    for name, value in given.items():
        _check_setting(name, [kind] if then is None else [kind, then])
        _set(pool, FLAGS[name].removeprefix("branch."), value)
    root = _policy(kind, pool)
    return root if then is None else {**root, "then": {**_policy(then, pool), "then": None}}


def _check_setting(flag: str, kinds: Sequence[str]) -> None:
    setting = FLAGS[flag].split(".")[1]
    having = [kind for kind, policy in _POLICIES.items() if setting in policy.model_fields]
    if not set(kinds) & set(having):
        policies = " and ".join(repr(kind) for kind in kinds)
        raise UsageError(
            f"{flag_name(flag)} has no effect: {policies} forks without it",
            hint=f"fork policies with this setting: {', '.join(having)}",
        )


def _policy(kind: str, pool: Tables) -> dict[str, Any]:
    known = _POLICIES[kind].model_fields
    return {**{key: value for key, value in pool.items() if key in known}, "kind": kind}


def _check_children(policy: Any) -> None:  # noqa: ANN401 - each kind of policy
    if policy is None:
        return
    n, most = getattr(policy, "n", 0), policy.budget.max_children
    if n > most:
        raise UsageError(
            f"--branch-n {n} is more than --branch-children {most}",
            hint="raise --branch-children, the bound of one fork",
        )
    _check_children(policy.then)
