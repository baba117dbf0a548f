"""The effective task and its deadlines: the task's own values, as the config changes them."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from benchflow_contracts import (
    ImageRecipe,
    Task,
    TaskAgent,
    TaskConfig,
    TaskEnvironment,
    TaskError,
    TaskParts,
    TaskSolution,
    TaskStep,
    TaskUser,
    TaskVerifier,
)

from benchflow_kernel.config import Deadlines, RolloutConfig

from .settings import Origin, Origins, with_values

_Table = TypeVar("_Table", TaskEnvironment, TaskVerifier, TaskSolution)

_GRADING_OVERHEAD_SEC = 300
"""Seconds to start and end the grading sandboxes, beside the tests that run in them."""

_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


@dataclass(frozen=True, slots=True)
class HostVariables:
    """The variables of the operator that a task may have."""

    allowed: Collection[str]
    values: Mapping[str, str]
    """Values of allowed variables. A variable that is not set is missing."""

    def value(self, reference: str, where: str) -> tuple[str, Origin | None]:
        """Return the value of `${NAME}` or `${NAME:-default}`, and its origin.

        The origin is `None` for the reference's own default.

        Raises:
            TaskError: A variable without a default is not allowed, or not set.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise TaskError(
                f"{reference!r} does not name a variable",
                where=where,
                hint="write ${NAME} or ${NAME:-default}",
            )
        name, default = match.groups()
        if name in self.allowed and name in self.values:
            return self.values[name], Origin("variable", f"${name}")
        if default is not None:
            return str(default), None
        if name in self.allowed:
            raise TaskError(
                f"the variable {name!r} is not set",
                where=where,
                hint=f"export {name}=…",
            )
        raise TaskError(
            f"needs the operator's variable {name!r}",
            where=where,
            hint=f"--forward-env {name}, if this task may have it",
        )


def effective_task(
    task: Task, config: RolloutConfig, variables: HostVariables, origins: Origins
) -> Task:
    """Return `task` with every value that holds in the rollout. Note the origin of each.

    Do not write the result to a record: it has the values of the operator's variables.

    Raises:
        TaskError: The task needs a variable that it may not have.
    """
    file = "task.toml:" if task.format == "benchflow" else f"{task.format} task:"
    mode_origin = origins.find("user.mode")
    origins.note_all("", task.config, "task", file)
    if config.user.mode is not None:
        origins.note("user.mode", mode_origin)
    for index, step in enumerate(task.steps):
        origins.note_all(f"steps.{index}", step, "task", file)
    return _TaskResolver(config, variables, origins).resolve(task)


class _TaskResolver:
    """Replaces the values of one task, table by table."""

    def __init__(self, config: RolloutConfig, variables: HostVariables, origins: Origins) -> None:
        self._config = config
        self._variables = variables
        self._origins = origins

    def resolve(self, task: Task) -> Task:
        tables = task.config
        config = with_values(
            tables,
            {
                "agent": self._agent(tables.agent, "agent"),
                "environment": self._environment(tables.environment, "environment"),
                "solution": self._with_env(tables.solution, "solution"),
                "verifier": self._verifier(tables.verifier, "verifier"),
                "user": self._user(tables.user),
            },
        )
        steps = tuple(self._step(step, f"steps.{i}") for i, step in enumerate(task.steps))
        # The parts are looked up here, once: later code reads them from the effective task.
        update = {"config": config, "steps": steps, "own_parts": self._parts(task.parts)}
        return with_values(task, update)

    def _step(self, step: TaskStep, where: str) -> TaskStep:
        update = {
            "agent": self._agent(step.agent, f"{where}.agent"),
            "verifier": self._verifier(step.verifier, f"{where}.verifier"),
            "parts": self._parts(step.parts),
        }
        return with_values(step, update)

    def _agent(self, agent: TaskAgent, where: str) -> TaskAgent:
        update: dict[str, object] = {}
        if agent.timeout_sec is not None:
            update["timeout_sec"] = self._seconds(agent.timeout_sec, f"{where}.timeout_sec")
        if self._config.offline:
            update |= self._offline(where, network=None)
        return with_values(agent, update)

    def _environment(self, environment: TaskEnvironment, where: str) -> TaskEnvironment:
        update: dict[str, object] = {}
        seconds = environment.image_timeout_sec
        if seconds is not None:
            update["image_timeout_sec"] = self._seconds(seconds, f"{where}.image_timeout_sec")
        if self._config.offline:
            update |= self._offline(where, network="none")
        return with_values(self._with_env(environment, where), update)

    def _verifier(self, verifier: TaskVerifier, where: str) -> TaskVerifier:
        config, note = self._config, self._origins.note
        update: dict[str, object] = {
            "timeout_sec": self._seconds(verifier.timeout_sec, f"{where}.timeout_sec")
        }
        if verifier.environment is not None:
            own = self._environment(verifier.environment, f"{where}.environment")
            update["environment"] = own
        if config.offline:
            update |= self._offline(where, network="none")
        if config.isolation is not None:
            # The operator chose this isolation, so do not grade a second time in place.
            update |= {"isolation": config.isolation, "may_grade_in_place": False}
            for name in ("isolation", "may_grade_in_place"):
                note(f"{where}.{name}", self._origins.find("isolation"))
        if config.expects_changes:
            update["expects_changes"] = (*verifier.expects_changes, *config.expects_changes)
            note(f"{where}.expects_changes", self._origins.find("expects_changes"))
        if config.reward_files is not None:
            update["reward_files"] = config.reward_files
            note(f"{where}.reward_files", self._origins.find("reward_files"))
        return with_values(self._with_env(verifier, where), update)

    def _user(self, user: TaskUser) -> TaskUser:
        mode = self._config.user.mode
        return user if mode is None else user.model_copy(update={"mode": mode})

    def _offline(self, where: str, *, network: str | None) -> dict[str, object]:
        for name in ("network", "allowed_hosts"):
            self._origins.note(f"{where}.{name}", self._origins.find("offline"))
        return {"network": network, "allowed_hosts": ()}

    def _seconds(self, seconds: float, name: str) -> float:
        factor = self._config.timeout_multiplier
        if factor == 1:
            return seconds
        base, multiplier = self._origins.find(name), self._origins.find("timeout_multiplier")
        self._origins.note(name, Origin(multiplier.kind, f"{base}, times {multiplier}"))
        return seconds * factor

    def _parts(self, parts: TaskParts) -> TaskParts:
        """Return `parts` with more or less time for each image."""
        services = tuple(
            with_values(service, {"recipe": self._recipe(service.recipe)})
            for service in parts.services
        )
        update = {
            "recipe": self._recipe(parts.recipe),
            "grading_recipe": self._recipe(parts.grading_recipe),
            "services": services,
        }
        return with_values(parts, update)

    def _recipe(self, recipe: ImageRecipe | None) -> ImageRecipe | None:
        if recipe is None:
            return None
        seconds = recipe.timeout_sec * self._config.timeout_multiplier
        return with_values(recipe, {"timeout_sec": seconds})

    def _with_env(self, table: _Table, where: str) -> _Table:
        """Return `table` with its `host_env` replaced by values of the operator's variables."""
        if not table.host_env:
            return table
        env = dict(table.env)
        for name, reference in table.host_env.items():
            key = f"{where}.env.{name}"
            env[name], origin = self._variables.value(reference, f"task.toml:{key}")
            if origin is not None:
                self._origins.note(key, origin)
        return table.model_copy(update={"env": env, "host_env": {}})


def effective_deadlines(task: Task, config: RolloutConfig, origins: Origins) -> Deadlines:
    """Return the config's deadlines, extended to the times that the effective task allows.

    The image's time is added to the start of the sandbox. A deadline for the turns or for
    grading that the config sets stays as it is.
    """
    deadlines, environment = config.deadlines, task.config.environment
    parts = [task.step(index).config for index in range(len(task.steps))] or [task.config]
    longer = {
        "execute": max(_agent_sec(part, deadlines) for part in parts),
        "verify": max(_grading_sec(part) for part in parts),
    }
    update: dict[str, float] = {}
    for name, table in (("execute", "agent"), ("verify", "verifier")):
        if name not in deadlines.model_fields_set and longer[name] > getattr(deadlines, name):
            update[name] = longer[name]
            key = f"steps.0.{table}.timeout_sec" if task.steps else f"{table}.timeout_sec"
            origins.note(f"deadlines.{name}", origins.find(key))
    if environment.image_timeout_sec is not None:
        update["start"] = deadlines.start + environment.image_timeout_sec
        origins.note("deadlines.start", origins.find("environment.image_timeout_sec"))
    return with_values(deadlines, update)


def _agent_sec(config: TaskConfig, deadlines: Deadlines) -> float:
    limit = config.agent.timeout_sec
    return deadlines.execute if limit is None else limit * config.agent.max_turns


def _grading_sec(config: TaskConfig) -> float:
    verifier = config.verifier
    image = verifier.environment.image_timeout_sec if verifier.environment else None
    collect_sec = sum(command.timeout_sec for command in verifier.collect)
    # Tests without a verdict run once more, in an untouched sandbox.
    runs = 3 if verifier.may_grade_in_place else 2
    return runs * verifier.timeout_sec + collect_sec + (image or 0) + _GRADING_OVERHEAD_SEC
