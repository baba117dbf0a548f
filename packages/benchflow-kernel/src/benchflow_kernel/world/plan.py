"""The plan of a rollout, made before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_contracts import (
    Agent,
    AgentNeeds,
    PriorContextError,
    Reward,
    Role,
    RolloutConfig,
    SandboxSpec,
    Task,
    TaskError,
    TaskVerifier,
    UnknownProviderError,
    UsageError,
)

from benchflow_kernel.faults import boundary
from benchflow_kernel.scenes import LoweredTurn, lower_scenes

from .deadlines import extend_deadlines
from .host_env import with_host_env
from .network_policy import StepPhases, check_widening, step_phases, with_switches
from .planes import Planes
from .sandbox_spec import agent_spec, fresh_grading_spec
from .task_overrides import with_expected_changes, with_reward_files, without_network

SKILLS_DIR = "/skills"
"""The directory of the skills inside the sandbox."""

SOLUTION_DIR = "/solution"
"""The directory of the solution inside the sandbox, for agents that may see it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved rollout. Shared by all of its worlds."""

    rollout_id: str
    task: Task
    config: RolloutConfig
    planes: Planes
    turns: tuple[LoweredTurn, ...]
    spec: SandboxSpec
    """The spec of the agent's sandbox, before the environment adds to it."""
    phases: tuple[StepPhases, ...]
    """The phases of each step; one entry for a task without steps."""
    agent_env: frozenset[str]
    """Names of the variables that only the agents need."""
    skills: Path | None
    """The host directory of the agents' skills."""
    solution: bool
    """Whether an agent may see the task's solution."""

    def task_of(self, turn: LoweredTurn) -> Task:
        """Return the task that `turn` prompts for: its step, or the task itself."""
        return self.task.step(turn.task_step) if self.task.steps else self.task

    def rewards(self, step: int) -> Sequence[Reward]:
        """Return the rewards of a step of the task."""
        return self.planes.step_rewards[step] if self.planes.step_rewards else self.planes.rewards

    @property
    def max_turns(self) -> int:
        """The number of declared turns, or the task's `max_turns` if that is more."""
        if self.task.steps:
            return len(self.turns)
        return max(len(self.turns), self.task.config.agent.max_turns)

    def grading_spec(self, spec: SandboxSpec, verifier: TaskVerifier) -> SandboxSpec:
        """Return the spec of a fresh grading sandbox for a world made from `spec`."""
        return fresh_grading_spec(spec, self.agent_env, verifier)


async def make_plan(task: Task, config: RolloutConfig, planes: Planes, rollout_id: str) -> Plan:
    """Lower the scenes, get the needs of every agent, and decide the sandbox's spec.

    Raises:
        UsageError: A role is not declared, an agent is unknown, two rewards have one name,
            or the needs of two roles contradict each other.
        TaskError: The task asks for a variable that it may not have, has both steps and
            nudges, begins with a prior trajectory that the agent cannot load, or has
            networks that would end its environment.
        AgentError: An agent cannot be made available on this machine.
    """
    task = with_host_env(without_network(task) if config.offline else task, config.forward_env)
    task = with_expected_changes(task, config.expects_changes)
    if config.reward_files is not None:
        task = with_reward_files(task, config.reward_files)
    config = config.model_copy(update={"deadlines": extend_deadlines(task, config.deadlines)})
    skills = _skills(task, config)
    turns = _turns(task, config, skills)
    for rewards in (planes.rewards, *planes.step_rewards):
        _check_rewards([reward.name for reward in rewards])
    asked = [(turn.role, await _needs(planes, turn.role)) for turn in _first_of_each_role(turns)]
    needs = [need for _, need in asked]
    _check_prior(task, asked)
    turns = tuple(_with_solution_env(turn, task, asked) for turn in turns)
    spec = agent_spec(task, config, needs)
    phases = step_phases(task, config, spec)
    if planes.environment is not None:
        check_widening(spec, phases)
    return Plan(
        rollout_id=rollout_id,
        task=task,
        config=config,
        planes=planes,
        turns=turns,
        spec=with_switches(spec, phases),
        phases=phases,
        agent_env=frozenset(name for need in needs for name in need.env),
        skills=skills,
        solution=any(need.solution for need in needs),
    )


def _turns(task: Task, config: RolloutConfig, skills: Path | None) -> tuple[LoweredTurn, ...]:
    """Return the turns of all scenes, repeated for each step of the task.

    Raises:
        TaskError: The task has both steps and nudges.
    """
    _check_steps(task)
    prompted = [task.step(index) for index in range(len(task.steps))] or [task]
    return tuple(
        replace(turn, role=_complete_role(turn.role, part, skills), task_step=index)
        for index, part in enumerate(prompted)
        for turn in lower_scenes(config)
    )


def _check_steps(task: Task) -> None:
    if not task.steps:
        return
    nudged = bool(task.config.user.nudges)
    if nudged or any(step.agent.max_turns > 1 for step in task.steps):
        raise TaskError(
            "a task with steps cannot have other prompts than those of its steps",
            where=f"task.toml:{'user.nudges' if nudged else 'agent.max_turns'}",
            hint="turn each further prompt into a step",
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


async def _needs(planes: Planes, role: Role) -> AgentNeeds:
    agent = agent_of(planes, role)
    with boundary("agent"):
        return await agent.needs(role)


def _first_of_each_role(turns: Sequence[LoweredTurn]) -> list[LoweredTurn]:
    found: list[LoweredTurn] = []
    for turn in turns:
        if all(turn.role != other.role for other in found):
            found.append(turn)
    return found


def _skills(task: Task, config: RolloutConfig) -> Path | None:
    if config.skill_mode == "no-skill":
        if config.skills_dir is not None:
            raise UsageError(
                "a skills directory was given, but skills are off", hint="use with-skill"
            )
        return None
    if config.skills_dir is not None and not config.skills_dir.is_dir():
        raise UsageError(f"skills directory {str(config.skills_dir)!r} does not exist")
    return config.skills_dir or task.parts.skills


def _check_prior(task: Task, asked: Sequence[tuple[Role, AgentNeeds]]) -> None:
    unable = next((role for role, need in asked if not need.solution), None)
    if task.parts.prior is not None and unable is not None:
        raise PriorContextError(
            f"begins with another agent's trajectory, which agent {unable.agent!r} cannot load",
            where=str(task.parts.prior),
        )


def _with_solution_env(
    turn: LoweredTurn, task: Task, asked: Sequence[tuple[Role, AgentNeeds]]
) -> LoweredTurn:
    """Add the solution's variables to a role that runs the solution, over its own."""
    if not any(role == turn.role and need.solution for role, need in asked):
        return turn
    solution = task.config.solution
    env = {**turn.role.env, **solution.env}
    update = {"env": env, "solution_protocol": solution.protocol}
    return replace(turn, role=turn.role.model_copy(update=update))


def _complete_role(role: Role, task: Task, skills: Path | None) -> Role:
    """Return the role with the task's time limit, tool servers and skills."""
    environment = task.config.environment
    update: dict[str, object] = {}
    limit = task.config.agent.timeout_sec
    given = "timeout_sec" in role.model_fields_set
    if limit is not None and (not given or limit < role.timeout_sec):
        update["timeout_sec"] = limit
    if environment.mcp_servers:
        update["mcp_servers"] = (*role.mcp_servers, *environment.mcp_servers)
    if skills is None and role.skills_dir is None and environment.skills_dir is not None:
        update["skills_dir"] = environment.skills_dir
    if skills is not None and role.skills_dir is None:
        update["skills_dir"] = SKILLS_DIR
        if not role.skills:
            names = (entry.name for entry in skills.iterdir() if entry.is_dir())
            update["skills"] = tuple(sorted(names))
    return role.model_copy(update=update) if update else role


def _check_rewards(names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two rewards are named {twice!r}")
