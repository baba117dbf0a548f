"""`${NAME}` of the host: the operator's variables that a task asks for."""

import os
import re
from collections.abc import Collection
from typing import TypeVar

from benchflow_contracts import Task, TaskEnvironment, TaskError, TaskSolution, TaskVerifier

from .task_overrides import map_verifiers

_NAMED = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")

_Table = TypeVar("_Table", TaskEnvironment, TaskVerifier, TaskSolution)


def with_host_env(task: Task, allowed: Collection[str]) -> Task:
    """Return `task` with its `host_env` filled in from this process's variables.

    Only names in `allowed` are looked up; other names get their default. Do not record the
    result: it contains secrets.

    Raises:
        TaskError: A variable without a default is not allowed, or not set.
    """
    config = task.config
    update = {
        "environment": _filled(config.environment, "environment", allowed),
        "solution": _filled(config.solution, "solution", allowed),
    }
    task = task.model_copy(update={"config": config.model_copy(update=update)})
    return map_verifiers(task, lambda table, where: _verifier(table, where, allowed))


def _verifier(verifier: TaskVerifier, where: str, allowed: Collection[str]) -> TaskVerifier:
    filled = _filled(verifier, where, allowed)
    if filled.environment is None:
        return filled
    environment = _filled(filled.environment, f"{where}.environment", allowed)
    return filled.model_copy(update={"environment": environment})


def _filled(table: _Table, where: str, allowed: Collection[str]) -> _Table:
    if not table.host_env:
        return table
    found = {
        name: _value(text, f"task.toml:{where}.env.{name}", allowed)
        for name, text in table.host_env.items()
    }
    return table.model_copy(update={"env": {**table.env, **found}, "host_env": {}})


def _value(text: str, where: str, allowed: Collection[str]) -> str:
    match = _NAMED.fullmatch(text)
    if match is None:
        raise TaskError(
            f"{text!r} does not name a variable",
            where=where,
            hint="write ${NAME} or ${NAME:-default}",
        )
    name, default = match.groups()
    value = os.environ.get(name) if name in allowed else None
    if value is not None:
        return value
    if default is not None:
        return str(default)
    if name in allowed:
        raise TaskError(
            f"wants the variable {name!r}, which is not set", where=where, hint=f"export {name}=…"
        )
    raise TaskError(
        f"wants the variable {name!r} of the operator",
        where=where,
        hint=f"--forward-env {name}, if this task may have it",
    )
