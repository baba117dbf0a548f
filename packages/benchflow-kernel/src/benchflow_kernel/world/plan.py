"""What a rollout will do, decided before anything is started."""

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

from .allotted import allotted
from .box import grading_box, merged_spec
from .expected import expecting
from .host_env import with_host_env
from .offline import offline
from .planes import Planes
from .reach import StepPhases, check_widening, step_phases, with_switches
from .reward_files import with_reward_files

SKILLS_DIR = "/skills"
"""Where the task's skills lie inside the box."""

SOLUTION_DIR = "/solution"
"""Where an agent that may see the solution finds it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved rollout. Shared by all of its worlds."""

    rollout_id: str
    task: Task
    config: RolloutConfig
    planes: Planes
    turns: tuple[LoweredTurn, ...]
    spec: SandboxSpec
    """Of the agent's box, before the environment adds what it needs."""
    phases: tuple[StepPhases, ...]
    """Of each step of the task; one in a task without steps."""
    agent_env: frozenset[str]
    """Names of the variables that are there for the agents alone."""
    skills: Path | None
    """The host directory of the skills that the agents are shown."""
    solution: bool

    def asked(self, turn: LoweredTurn) -> Task:
        """Return the task whose prompt `turn` is: one of several steps, or the task itself."""
        return self.task.step(turn.task_step) if self.task.steps else self.task

    def rewards(self, step: int) -> Sequence[Reward]:
        """Return what grades a step of the task."""
        return self.planes.step_rewards[step] if self.planes.step_rewards else self.planes.rewards

    @property
    def max_turns(self) -> int:
        """The declared turns, or more when the task allows its user that many."""
        if self.task.steps:
            return len(self.turns)
        return max(len(self.turns), self.task.config.agent.max_turns)

    def grading_spec(self, spec: SandboxSpec, verifier: TaskVerifier) -> SandboxSpec:
        """Return what a fresh grading box for a world made of `spec` is made of."""
        return grading_box(spec, self.agent_env, verifier)


async def make_plan(task: Task, config: RolloutConfig, planes: Planes, rollout_id: str) -> Plan:
    """Lower the scenes, ask every agent for its needs, and settle the box.

    Raises:
        UsageError: An undeclared role, an unknown agent, two rewards of one name, or
            roles whose needs contradict each other.
        TaskError: The task wants a variable of the operator's that it may not have, has
            several steps and nudges, begins with what no agent can load, or has networks
            that would end its environment.
        AgentError: An agent cannot be made available on this machine.
    """
    task = with_host_env(offline(task) if config.offline else task, config.forward_env)
    task = expecting(task, config.expects_changes)
    if config.reward_files is not None:
        task = with_reward_files(task, config.reward_files)
    config = config.model_copy(update={"deadlines": allotted(task, config.deadlines)})
    skills = _skills(task, config)
    turns = _turns(task, config, skills)
    for rewards in (planes.rewards, *planes.step_rewards):
        _check_rewards([reward.name for reward in rewards])
    asked = [(turn.role, await _needs(planes, turn.role)) for turn in _first_of_each_role(turns)]
    needs = [need for _, need in asked]
    _check_prior(task, asked)
    turns = tuple(_told_the_solution(turn, task, asked) for turn in turns)
    spec = merged_spec(task, config, needs)
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
    """Return the turns of all scenes, once for each step of the task.

    Raises:
        TaskError: The steps leave room for prompts of the user's own.
    """
    _check_steps(task)
    prompted = [task.step(index) for index in range(len(task.steps))] or [task]
    return tuple(
        replace(turn, role=_equipped(turn.role, asked, skills), task_step=index)
        for index, asked in enumerate(prompted)
        for turn in lower_scenes(config)
    )


def _check_steps(task: Task) -> None:
    if not task.steps:
        return
    nudged = bool(task.config.user.nudges)
    if nudged or any(step.agent.max_turns > 1 for step in task.steps):
        raise TaskError(
            "a task of several steps has no prompts but those of its steps",
            where=f"task.toml:{'user.nudges' if nudged else 'agent.max_turns'}",
            hint="make each further prompt a step of its own",
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
            f"role {role.name!r} wants agent {role.agent!r}; this rollout has: {known}"
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
                "a skills directory was given, and skills are off", hint="use with-skill"
            )
        return None
    if config.skills_dir is not None and not config.skills_dir.is_dir():
        raise UsageError(f"no skills directory {str(config.skills_dir)!r}")
    return config.skills_dir or task.parts.skills


def _check_prior(task: Task, asked: Sequence[tuple[Role, AgentNeeds]]) -> None:
    unable = next((role for role, need in asked if not need.solution), None)
    if task.parts.prior is not None and unable is not None:
        raise PriorContextError(
            f"begins after what another agent did, which agent {unable.agent!r} cannot load",
            where=str(task.parts.prior),
        )


def _told_the_solution(
    turn: LoweredTurn, task: Task, asked: Sequence[tuple[Role, AgentNeeds]]
) -> LoweredTurn:
    """Give a role that plays the solution its variables, over those of the role."""
    if not any(role == turn.role and need.solution for role, need in asked):
        return turn
    solution = task.config.solution
    env = {**turn.role.env, **solution.env}
    update = {"env": env, "solution_protocol": solution.protocol}
    return replace(turn, role=turn.role.model_copy(update=update))


def _equipped(role: Role, task: Task, skills: Path | None) -> Role:
    """Return the role with the task's time limit and tools, and the skills that it is shown."""
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
