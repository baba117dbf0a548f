"""From a task and a config to the plan of a rollout."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchflow_contracts import (
    Agent,
    AgentNeeds,
    Door,
    McpServer,
    Role,
    RolloutIdentity,
    SandboxCapabilities,
    SandboxSpec,
    Task,
    UsageError,
    WorldSnapshots,
    needs_spawn,
    outside_world,
)

from benchflow_kernel.config import RolloutConfig
from benchflow_kernel.errors import UnknownProviderError
from benchflow_kernel.faults import boundary

from .effective_task import HostVariables, effective_deadlines, effective_task
from .model_access import choose_access
from .network_policy import check_widening, step_phases, with_switches
from .plan import Plan, Planes
from .sandbox_spec import Needs, agent_spec, with_environment, with_world_doors
from .settings import Origin, Origins, with_values
from .turns import (
    LoweredTurn,
    check_prior,
    roles_of,
    skills_of,
    turns_of,
    with_solution_env,
    with_world_tools,
)


@dataclass(frozen=True, slots=True)
class EnvironmentNeeds:
    """The needs of the environment in the sandbox."""

    name: str
    prepare: Callable[[SandboxSpec], SandboxSpec]
    spawns: bool = False
    """Whether the environment starts processes by `Sandbox.spawn`."""
    world_snapshots: WorldSnapshots | None = None
    """For a world outside the sandbox, how another session gets its state."""
    doors: tuple[Door, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    """The tool servers of a world outside the sandbox."""


Schedule = Callable[[Task, tuple[LoweredTurn, ...]], tuple[LoweredTurn, ...]]


@dataclass(frozen=True, slots=True)
class Contributions:
    """The inputs of a plan, beside the task and the config."""

    needs: Needs = ()
    environment: EnvironmentNeeds | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """The operator's variables. Only those in `RolloutConfig.forward_env` are used."""
    capabilities: SandboxCapabilities | None = None
    """The capabilities of the sandbox provider, if known."""
    origins: Mapping[str, Origin] | None = None
    """The origins of the config's values, by the name of a setting."""
    identity: RolloutIdentity = field(default_factory=RolloutIdentity)
    """What the caller knows of the rollout."""
    schedule: Schedule | None = None
    """For a resumed rollout: the turns to run, from the task and the turns of the config."""


def resolve(
    task: Task, config: RolloutConfig, inputs: Contributions, planes: Planes, rollout_id: str
) -> Plan:
    """Return the plan: every effective value, and its origin.

    This function does not start, write or ask anything. The plan does not change later.

    Raises:
        UsageError: A role is not declared, two rewards have one name, or the needs of two
            roles contradict each other.
        TaskError: The task needs a variable that it may not have, has both steps and
            nudges, begins with a prior trajectory that the agent cannot load, or has
            networks that would end its environment.
    """
    return _complete(_lower(task, config, inputs), inputs, planes, rollout_id)


@dataclass(frozen=True, slots=True)
class _Lowered:
    """The part of a plan that does not depend on the needs of the agents."""

    task: Task
    config: RolloutConfig
    turns: tuple[LoweredTurn, ...]
    skills: Path | None
    origins: Origins


def _lower(task: Task, config: RolloutConfig, inputs: Contributions) -> _Lowered:
    origins = _origins_of(config, inputs)
    variables = HostVariables(config.forward_env, inputs.variables)
    task = effective_task(task, config, variables, origins)
    deadlines = effective_deadlines(task, config, origins)
    config = with_values(config, {"deadlines": deadlines})
    skills = skills_of(task, config)
    if skills is not None and config.skills_dir is None:
        origins.note("skills", Origin("task", "the skills of the task"))
    turns = turns_of(task, config, skills, origins)
    return _Lowered(task, config, turns, skills, origins)


def _complete(lowered: _Lowered, inputs: Contributions, planes: Planes, rollout_id: str) -> Plan:
    for rewards in (planes.rewards, *planes.step_rewards):
        _check_rewards([reward.name for reward in rewards])
    task, config, origins = lowered.task, lowered.config, lowered.origins
    check_prior(task, inputs.needs)
    turns = tuple(with_solution_env(turn, task, inputs.needs, origins) for turn in lowered.turns)
    if inputs.schedule is not None:
        turns = inputs.schedule(task, turns)
    spec = agent_spec(task, config, inputs.needs, origins)
    environment = inputs.environment
    if environment is not None and environment.doors:
        spec = with_world_doors(spec, environment.name, environment.doors, origins)
        turns = with_world_tools(turns, environment.name, environment.mcp_servers, origins)
    phases = step_phases(task, spec)
    spec = with_switches(spec, phases)
    if environment is not None:
        check_widening(spec, phases)
        spec = with_environment(spec, environment.name, environment.prepare, origins)
    return Plan(
        rollout_id=rollout_id,
        task=task,
        config=config,
        planes=planes,
        turns=turns,
        spec=spec,
        phases=phases,
        agent_env=frozenset(name for _, need in inputs.needs for name in need.env),
        skills=lowered.skills,
        solution=any(need.solution for _, need in inputs.needs),
        spawning_environment=environment.name if environment and environment.spawns else None,
        world_snapshots=environment.world_snapshots if environment else None,
        model_path=choose_access(task, config, spec, phases, inputs.capabilities, origins),
        capabilities=inputs.capabilities,
        identity=inputs.identity,
        origins=origins,
    )


def planned_roles(task: Task, config: RolloutConfig) -> list[Role]:
    """Return the roles of a rollout. The agents of these roles have needs.

    Raises:
        UsageError: A role is not declared.
        TaskError: As `resolve`.
    """
    return roles_of(_lower(task, config, Contributions(variables=os.environ)).turns)


async def make_plan(
    task: Task,
    config: RolloutConfig,
    planes: Planes,
    rollout_id: str,
    *,
    identity: RolloutIdentity | None = None,
    origins: Mapping[str, Origin] | None = None,
    schedule: Schedule | None = None,
) -> Plan:
    """Ask every agent and the environment for their needs, and resolve the plan.

    Raises:
        BenchFlowError: As `resolve` or `schedule`; an agent is unknown or cannot be installed,
            or the environment's files are malformed.
    """
    inputs = Contributions(
        variables=os.environ,
        identity=identity or RolloutIdentity(),
        origins=origins,
        schedule=schedule,
    )
    lowered = _lower(task, config, inputs)
    needs = [(role, await _needs_of(planes, role)) for role in roles_of(lowered.turns)]
    inputs = replace(inputs, needs=needs, environment=environment_needs(task, planes))
    if config.model.access.mode != "tunnel":
        with boundary("sandbox"):
            inputs = replace(inputs, capabilities=await planes.provider.capabilities())
    return _complete(lowered, inputs, planes, rollout_id)


def environment_needs(task: Task, planes: Planes) -> EnvironmentNeeds | None:
    """Return the needs of the environment of `planes`."""
    if planes.environment is None:
        return None
    with boundary("environment"):
        environment = planes.environment()

    def prepare(spec: SandboxSpec) -> SandboxSpec:
        with boundary("environment"):
            return environment.prepare(spec, task_id=task.id)

    needs = EnvironmentNeeds(environment.name, prepare, needs_spawn(environment))
    world = outside_world(environment)
    if world is None:
        return needs
    with boundary("environment"):
        return replace(
            needs,
            world_snapshots=world.world_snapshots,
            doors=world.doors,
            mcp_servers=world.mcp_servers,
        )


def agent_of(planes: Planes, role: Role) -> Agent:
    """Return the agent that plays `role`.

    Raises:
        UnknownProviderError: The planes have no agent of that name.
    """
    agent = planes.agents.get(role.agent)
    if agent is None:
        known = ", ".join(sorted(planes.agents)) or "none"
        raise UnknownProviderError(
            f"role {role.name!r} needs agent {role.agent!r}; this rollout has: {known}"
        )
    return agent


async def _needs_of(planes: Planes, role: Role) -> AgentNeeds:
    agent = agent_of(planes, role)
    with boundary("agent"):
        return await agent.needs(role)


def _origins_of(config: RolloutConfig, inputs: Contributions) -> Origins:
    origins = Origins(inputs.origins)
    if inputs.origins is None:
        origins.note_all("", config, "python", "RolloutConfig.")
        for role in (role for scene in config.scenes for role in scene.roles):
            for name in role.model_fields_set:
                origins.note(f"role.{role.name}.{name}", Origin("python", f"Role.{name}"))
    return origins


def _check_rewards(names: list[str]) -> None:
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageError(f"two rewards are named {duplicate!r}")
