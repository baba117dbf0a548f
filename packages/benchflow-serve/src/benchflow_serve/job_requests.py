"""The configuration of a job: the server's, with the tables that a request may set."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from benchflow_contracts import PolicyEndpoint
from benchflow_jobs import JobConfig, JobConfigError, plan_of
from benchflow_jobs.planning import JobSource, parse_job
from benchflow_jobs.planning.variants import laid_over, tables_of

from .caps import tree_size
from .policies import configured_for
from .problems import LimitExceededError, RequestRefusedError
from .settings import ServeSettings

_TABLES: Final = frozenset({"design", "run", "variants", "sweep", "concurrency", "budget"}) | {
    "retry",
    "breaker",
    "pruning",
    "learner",
}
"""Tables that a request may set as a whole; `run` and its variants only with the keys below."""
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "job": frozenset({"name", "id"}),
    "dataset": frozenset({"include", "exclude", "limit"}),
}
_RUN: Final = frozenset(
    {
        "bindings",
        "branch",
        "keep",
        "seed",
        "deadline_sec",
        "agent.name",
        "agent.model",
        "agent.reasoning_effort",
        "model.base_url",
        "model.upstream",
        "model.sampling",
        "model.seed",
    }
)
"""Keys of a configuration of rollouts. Others are import paths, paths, images, or variables."""


_MAX_VARIANTS: Final = 1000
_MAX_SLOTS: Final = 100_000
"""A plan of a greater job would take the memory of the service."""


def job_config(
    settings: ServeSettings,
    tables: Mapping[str, Any],
    name: str,
    endpoint: PolicyEndpoint | None = None,
) -> JobConfig:
    """Return the checked configuration of a job called `name`, whose policy has `endpoint`.

    Raises:
        RequestRefusedError: A key may not be set, or a value is wrong.
        LimitExceededError: The job asks for more than the operator allows for each rollout.
    """
    _check_keys(settings, tables)
    base = settings.config
    if endpoint is not None:
        _check_policy(tables)
        base = configured_for(base, endpoint)
    budget = dict(_table(tables, "budget"))
    if settings.caps.wall_sec is not None:
        budget.setdefault("rollout_sec", settings.caps.wall_sec)
    merged: dict[str, Any] = {
        **tables,
        "job": {**_table(tables, "job"), "name": name, "jobs_dir": str(_jobs_dir(settings))},
        "dataset": {
            **_table(tables, "dataset"),
            "paths": [str(path.resolve()) for path in settings.tasks_dirs],
        },
        "run": laid_over(tables_of(base), _run_table(settings, tables.get("run", {}))),
        "variants": [_run_table(settings, each) for each in _variants(tables)],
        "budget": budget,
    }
    try:
        config = parse_job(JobSource(merged, "the request"))
        _check_caps(settings, config)
    except JobConfigError as error:
        first = error.problems[0]
        where = ".".join(map(str, first.key))
        raise RequestRefusedError(str(error), hint=error.hint, where=where) from None
    return config


def _jobs_dir(settings: ServeSettings) -> object:
    return settings.directory.resolve() / "jobs"


def _check_keys(settings: ServeSettings, tables: Mapping[str, Any]) -> None:
    for key in tables:
        if key not in _TABLES and key not in _KEYS:
            raise _refused(key)
        for inner in _table(tables, key) if key in _KEYS else ():
            if inner not in _KEYS[key]:
                raise _refused(f"{key}.{inner}")
    _check_layer(settings, tables.get("run", {}), "run", _RUN)
    if len(_variants(tables)) > _MAX_VARIANTS:
        raise _too_large("variants", f"more than {_MAX_VARIANTS} variants")
    for place, layer in enumerate(_variants(tables)):
        _check_layer(settings, layer, f"variants.{place}", _RUN | {"id"})
    _check_sweep(settings, _table(tables, "sweep"))


def _check_policy(tables: Mapping[str, Any]) -> None:
    """Refuse a job that names a policy and another endpoint."""
    layers = {"run": tables.get("run", {}), "sweep": _table(tables, "sweep")}
    layers |= {f"variants.{n}": layer for n, layer in enumerate(_variants(tables))}
    for where, layer in layers.items():
        for key, _ in _flat(layer, depth=3):
            if key in {"model.base_url", "model.upstream"}:
                raise RequestRefusedError(
                    f"the job has a policy, and {where}.{key} names another endpoint",
                    hint="leave out one of them",
                    where=f"{where}.{key}",
                )


def _check_layer(
    settings: ServeSettings, layer: object, where: str, allowed: frozenset[str]
) -> None:
    if not isinstance(layer, Mapping):
        raise RequestRefusedError(f"{where!r} is not a table", where=where)
    for key, value in _flat(cast("Mapping[str, object]", layer)):
        if key not in allowed:
            raise _refused(f"{where}.{key}")
        _check_agent(settings, key, value, where)


def _check_sweep(settings: ServeSettings, sweep: Mapping[str, Any]) -> None:
    count = 1
    for key, values in _flat(sweep, depth=3):
        # With an endpoint of the request, the key of the operator would go there.
        is_known = any(key == each or key.startswith(f"{each}.") for each in _RUN)
        if not is_known or key == "model.base_url":
            raise _refused(f"sweep.{key}")
        listed = cast("list[object]", values if isinstance(values, list) else [values])
        for value in listed:
            _check_agent(settings, key, value, "sweep")
        count *= max(1, len(listed))
        if count > _MAX_VARIANTS:
            raise _too_large("sweep", f"more than {_MAX_VARIANTS} variants")


def _too_large(where: str, what: str) -> LimitExceededError:
    return LimitExceededError(
        f"{where}: the job has {what}", hint="submit several smaller jobs", where=where
    )


def _check_agent(settings: ServeSettings, key: str, value: object, where: str) -> None:
    names = [settings.config.agent.label, *settings.allow_agents]
    if key == "agent.name" and value not in names:
        raise RequestRefusedError(
            f"the service does not allow agent {str(value)[:100]!r}",
            hint=f"allowed: {', '.join(names)}; the operator adds one with --allow-agent",
            where=f"{where}.agent.name",
        )


def _refused(key: str) -> RequestRefusedError:
    return RequestRefusedError(
        f"a request cannot set {key[:200]!r} of a job",
        status=403,
        hint="the operator sets it with the options of bench serve",
        where=key[:200],
    )


def _run_table(settings: ServeSettings, layer: object) -> dict[str, Any]:
    """Return a layer. The key of the operator never goes to an endpoint of the request."""
    if not isinstance(layer, Mapping):
        return {}
    table = dict(cast("Mapping[str, Any]", layer))
    agent, model = table.get("agent"), table.get("model")
    if isinstance(agent, Mapping):
        named = dict(cast("Mapping[str, Any]", agent))
        if named.get("name") == settings.config.agent.label:
            del named["name"]
        elif "name" in named:
            named["import_path"] = None
        table["agent"] = named
    if isinstance(model, Mapping) and "base_url" in model:
        table["model"] = {**cast("Mapping[str, Any]", model), "api_key_env": ""}
    return table


def _check_caps(settings: ServeSettings, config: JobConfig) -> None:
    """Refuse a job whose rollouts may use more than single requests may.

    Raises:
        LimitExceededError: A value is above its limit.
    """
    caps, plan = settings.caps, plan_of(config).plan
    count = len(plan.slots)
    if count > _MAX_SLOTS:
        raise _too_large("design", f"{count} rollouts, and {_MAX_SLOTS} are allowed")
    rows: list[tuple[str, float | None, float | None]] = [
        ("wall_sec", config.budget.rollout_sec, caps.wall_sec),
        ("tokens", config.budget.tokens, _times(caps.tokens, count)),
        ("cost_usd", config.budget.cost_usd, _times(caps.cost_usd, count)),
    ]
    own = settings.config.branch
    for variant in plan.variants:
        if (branch := variant.run.branch) is not None and branch != own:
            leaves, forks = tree_size(branch)
            rows += [("leaves", leaves, caps.leaves), ("forks", forks, caps.forks)]
    for name, value, cap in rows:
        if cap is not None and (value is None or value > cap):
            shown = "no limit of" if value is None else f"{value:g}"
            raise LimitExceededError(
                f"the job allows {shown} {name}, and the service {cap:g} for its {count} rollouts",
                hint=f"set a smaller value; the operator sets --cap-{name.replace('_', '-')}",
                where="budget" if name in {"tokens", "cost_usd", "wall_sec"} else "branch",
            )


def _times(cap: float | None, count: int) -> float | None:
    return None if cap is None else cap * count


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = tables.get(key, {})
    if not isinstance(value, Mapping):
        raise RequestRefusedError(f"{key!r} is not a table", where=key)
    return cast("Mapping[str, Any]", value)


def _variants(tables: Mapping[str, Any]) -> Sequence[object]:
    value: object = tables.get("variants", [])
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RequestRefusedError("'variants' is not a list of tables", where="variants")
    return cast("Sequence[object]", value)


def _flat(layer: object, prefix: str = "", depth: int = 2) -> Iterator[tuple[str, object]]:
    """Yield the values by dotted key.

    At depth 2, the tables of `agent` and `model` are opened. At depth 3, all tables are.
    """
    if not isinstance(layer, Mapping):
        raise RequestRefusedError(f"{(prefix or 'the layer').strip('.')!r} is not a table")
    for key, value in cast("Mapping[str, object]", layer).items():
        name = f"{prefix}{key}"
        if depth == 3:
            is_open = isinstance(value, Mapping)
        else:
            is_open = depth == 2 and name in {"agent", "model"}
        if not is_open:
            yield name, value
        else:
            yield from _flat(value, f"{name}.", 3 if depth == 3 else 1)
