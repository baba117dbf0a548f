"""Convert a HarborTask into the Task that BenchFlow runs."""

import re
from collections.abc import Mapping
from typing import Final

from benchflow_contracts import (
    Artifact,
    CollectCommand,
    ImageRecipe,
    SetupCommand,
    Task,
    TaskAgent,
    TaskConfig,
    TaskError,
    TaskParts,
    TaskSolution,
    TaskStep,
    TaskVerifier,
)
from pydantic import ValidationError

from benchflow_adapters_harbor.client_service import harbor_compose
from benchflow_adapters_harbor.config import CollectHook
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.task import HarborStep, HarborTask

from .environment import (
    NETWORKS,
    Variables,
    lower_environment,
    lower_healthcheck,
    recipe,
    user_name,
    variables,
)

_UNLIMITED_SEC: Final = 30 * 24 * 3600.0
"""The time limit if a task does not set one."""
_ORACLE_ENV: Final = {"DEBIAN_FRONTEND": "noninteractive"}
_SETUP = "setup.sh"
_ORACLE_LOG: Final = "/logs/agent/oracle.txt"
_SOLVE: Final = f"""run='(/solution/solve.sh) > {_ORACLE_LOG} 2>&1'
if command -v bash >/dev/null; then bash -c "$run"; else sh -c "$run"; fi
code=$?
head -c 1000000 {_ORACLE_LOG}
exit $code
"""
"""Run the script as Harbor does: by its interpreter line, with the output in a log that the tests
may read. The shell runs a script without an interpreter line."""
_EMPTIED: Final = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""The directories that Harbor empties at the end of each step."""


def lower(task: HarborTask, policy: HostPolicy = HostPolicy()) -> Task:  # noqa: B008
    """Convert `task` to a Task. Read only its Dockerfile, and run nothing.

    `policy` has the operator's permissions for the compose file. Requests that a Task cannot
    express are lost here; `blockers` reports them before.

    Raises:
        TaskError: A value is beyond the limits of a Task.
    """
    try:
        return _lower(task, policy)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskError(
            f"{key} cannot be used: {first['msg']}",
            where=str(task.path),
            hint="correct the value that the message names",
        ) from error


def _lower(task: HarborTask, policy: HostPolicy) -> Task:
    single = _single_container(task)
    old = task.terminal_bench is not None and not task.is_migrated
    compose = harbor_compose(task) if old else task.compose
    if compose is None:
        return single
    # These models take long to import, and few tasks have a compose file.
    from .composed import composed_stack, with_stack  # noqa: PLC0415

    return with_stack(single, composed_stack(task, compose, policy), task)


def _single_container(task: HarborTask) -> Task:
    config, first = task.config, task.steps[0]
    several = first.name is not None
    package = config.task
    name = _task_name(task.name)
    return Task(
        id=name,
        path=task.path,
        instruction=first.instruction,
        digest=task.digest,
        format=task.format,
        own_parts=_parts(task, first),
        steps=tuple(_step(task, step) for step in task.steps) if several else (),
        config=TaskConfig(
            name=name,
            description=package.description if package else "",
            authors=tuple(author.name for author in package.authors) if package else (),
            keywords=package.keywords if package else (),
            metadata=config.metadata,
            artifacts=_shared_artifacts(task),
            agent=_agent(first),
            environment=lower_environment(config.environment, config.environment.policy()),
            verifier=lower_verifier(first),
            solution=TaskSolution(
                command=_SOLVE, may_fail=True, **_solution_variables(config.solution.env)
            ),
            step_reward=config.multi_step_reward_strategy or "mean",
        ),
    )


def _task_name(name: str) -> str:
    """Return the name in the form of a Task's name. A Harbor name may have any letter case."""
    plain = re.sub(r"[^a-z0-9._/-]+", "-", name.lower())
    parts = [part.lstrip("._-") for part in plain.split("/")]
    return "/".join(part or "task" for part in parts)


def _parts(task: HarborTask, step: HarborStep) -> TaskParts:
    environment = task.config.environment
    return TaskParts(
        workdir_files=task.context if task.upload_context else None,
        tests=step.verifier.tests,
        solution=None if step.solution is None else step.solution.parent,
        prior=step.trajectory,
        recipe=recipe(environment, task.context),
        grading_recipe=grading_recipe(step),
    )


def _step(task: HarborTask, step: HarborStep) -> TaskStep:
    setup: tuple[SetupCommand, ...] = ()
    if step.workdir is not None and (step.workdir / _SETUP).is_file():
        setup = (SetupCommand(command=f"bash {_SETUP}", user="", timeout_sec=_UNLIMITED_SEC),)
    check = step.healthcheck
    parts = _parts(task, step)
    return TaskStep(
        name=step.name or "",
        instruction=step.instruction,
        agent=_agent(step),
        verifier=lower_verifier(step),
        setup_commands=setup,
        emptied_directories=_EMPTIED,
        healthcheck=None if check is None else lower_healthcheck(check),
        min_reward=_min_reward(step),
        artifacts=tuple(p for p in _artifacts(step) if p not in _shared_artifacts(task)),
        parts=parts.model_copy(update={"workdir_files": step.workdir}),
    )


def _agent(step: HarborStep) -> TaskAgent:
    limit = _UNLIMITED_SEC if step.timeout_sec is None else step.timeout_sec
    return TaskAgent(
        timeout_sec=limit,
        network=NETWORKS[step.network.network_mode],
        allowed_hosts=step.network.allowed_hosts,
        user=None if step.user is None else user_name(step.user),
    )


def _artifacts(step: HarborStep) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(
            source=each.source,
            destination=each.destination or "",
            service="" if each.service in {None, MAIN} else str(each.service),
            exclude=each.exclude,
        )
        for each in step.artifacts
    )


def _shared_artifacts(task: HarborTask) -> tuple[Artifact, ...]:
    """Return the artifacts that every step has: the task's own artifacts."""
    others = [_artifacts(step) for step in task.steps[1:]]
    return tuple(p for p in _artifacts(task.steps[0]) if all(p in other for other in others))


def _min_reward(step: HarborStep) -> Mapping[str, float]:
    least = step.min_reward
    if least is None:
        return {}
    return least if isinstance(least, Mapping) else {"reward": float(least)}


def _solution_variables(env: Mapping[str, str]) -> Variables:
    own = variables(env)
    defaults = {k: v for k, v in _ORACLE_ENV.items() if k not in env}
    return Variables(env={**defaults, **own["env"]}, host_env=own["host_env"])


def lower_verifier(step: HarborStep) -> TaskVerifier:
    """Convert the `[verifier]` of one step. It grades in a twin, or in its own container."""
    plan = step.verifier
    own = plan.environment
    network = NETWORKS[plan.network.network_mode]
    return TaskVerifier(
        protocol="harbor",
        isolation="twin" if own is None else "hermetic",
        may_grade_in_place=own is None,
        timeout_sec=plan.timeout_sec,
        **variables(plan.env),
        network=network,
        allowed_hosts=plan.network.allowed_hosts,
        user=user_name(plan.user),
        environment=None if own is None else lower_environment(own, plan.network),
        tests_in_image=plan.tests_in_image,
        collect=tuple(map(_collect, step.collect)),
    )


def grading_recipe(step: HarborStep) -> ImageRecipe | None:
    """Return the recipe of the image of the verifier's own container, or None."""
    plan = step.verifier
    if plan.environment is None or plan.directory is None:
        return None
    return recipe(plan.environment, plan.directory)


def _collect(hook: CollectHook) -> CollectCommand:
    return CollectCommand(
        command=hook.command,
        timeout_sec=hook.timeout_sec,
        user=user_name(hook.user),
        service="" if hook.service == MAIN else hook.service,
    )
