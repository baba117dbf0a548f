"""The turns of a rollout: the scenes for each step of the task, with complete roles."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_contracts import (
    McpServer,
    Role,
    Task,
    TaskError,
    UsageError,
)

from benchflow_kernel.config import RolloutConfig, Scene
from benchflow_kernel.errors import PriorContextError

from .sandbox_spec import Needs
from .settings import Origin, Origins

SKILLS_DIR = "/skills"
"""The directory of the skills inside the sandbox."""


@dataclass(frozen=True, slots=True)
class LoweredTurn:
    """One prompt turn with its complete configuration."""

    scene: str
    role: Role
    """The declared role, merged with the scene's skills."""
    prompt: str | None
    """`None` means the task's instruction."""
    task_step: int = 0
    """The index of the task's step; 0 in a task of one prompt."""


def lower_scenes(config: RolloutConfig) -> tuple[LoweredTurn, ...]:
    """Return all turns of all scenes in order. Later code does not use scenes.

    Raises:
        UsageError: A turn names an undeclared role, a role is declared twice in one
            scene, or there is no turn at all.
    """
    turns = tuple(turn for scene in config.scenes for turn in _lower(scene))
    if not turns:
        raise UsageError("the scenes have no turn", hint="give at least one scene a turn")
    return turns


def _lower(scene: Scene) -> list[LoweredTurn]:
    names = Counter(role.name for role in scene.roles)
    duplicates = [name for name, count in names.items() if count > 1]
    if duplicates:
        raise UsageError(f"scene {scene.name!r} declares role {duplicates[0]!r} twice")
    roles = {role.name: _merge(role, scene) for role in scene.roles}
    turns: list[LoweredTurn] = []
    for turn in scene.turns:
        if turn.role not in roles:
            raise UsageError(
                f"scene {scene.name!r} has a turn of role {turn.role!r}, which it does not declare",
                hint=f"declared here: {', '.join(sorted(roles))}",
            )
        turns.append(LoweredTurn(scene=scene.name, role=roles[turn.role], prompt=turn.prompt))
    return turns


def _merge(role: Role, scene: Scene) -> Role:
    return role if scene.skills is None else role.model_copy(update={"skills": scene.skills})


def skills_of(task: Task, config: RolloutConfig) -> Path | None:
    """Return the host directory of the agents' skills.

    Raises:
        UsageError: Skills are off, or the directory does not exist.
    """
    if config.skill_mode == "no-skill":
        if config.skills_dir is not None:
            raise UsageError("a skills directory is set, but skills are off", hint="use with-skill")
        return None
    if config.skills_dir is not None and not config.skills_dir.is_dir():
        raise UsageError(f"skills directory {str(config.skills_dir)!r} does not exist")
    return config.skills_dir or task.parts.skills


def turns_of(
    task: Task, config: RolloutConfig, skills: Path | None, origins: Origins
) -> tuple[LoweredTurn, ...]:
    """Return the turns of all scenes, repeated for each step of the task.

    Raises:
        UsageError: A turn names a role that is not declared.
        TaskError: The task has both steps and nudges.
    """
    _check_steps(task)
    resolvers = [
        _RoleResolver(task.step(index), f"steps.{index}.", origins)
        for index in range(len(task.steps))
    ] or [_RoleResolver(task, "", origins)]
    return tuple(
        replace(turn, role=resolver.resolve(turn.role, skills), task_step=index)
        for index, resolver in enumerate(resolvers)
        for turn in lower_scenes(config)
    )


def roles_of(turns: Sequence[LoweredTurn]) -> list[Role]:
    """Return each role once, in the order of the turns."""
    roles: list[Role] = []
    for turn in turns:
        if turn.role not in roles:
            roles.append(turn.role)
    return roles


def with_solution_env(turn: LoweredTurn, task: Task, needs: Needs, origins: Origins) -> LoweredTurn:
    """Add the solution's variables to a role that runs the solution, over its own."""
    if not any(role == turn.role and need.solution for role, need in needs):
        return turn
    solution = task.config.solution
    update = {
        "env": {**turn.role.env, **solution.env},
        "solution_command": solution.command,
        "solution_may_fail": solution.may_fail,
    }
    prefix = f"steps.{turn.task_step}." if task.steps else ""
    for name in solution.env:
        key = f"{prefix}role.{turn.role.name}.env.{name}"
        origins.note(key, origins.find(f"solution.env.{name}"))
    return replace(turn, role=turn.role.model_copy(update=update))


def with_world_tools(
    turns: Sequence[LoweredTurn], name: str, servers: Sequence[McpServer], origins: Origins
) -> tuple[LoweredTurn, ...]:
    """Return the turns, each role with the tool servers of the environment `name`."""
    for turn in turns:
        prefix = f"steps.{turn.task_step}." if turn.task_step else ""
        origins.note(f"{prefix}role.{turn.role.name}.mcp_servers", Origin("environment", name))
    return tuple(
        replace(
            turn,
            role=turn.role.model_copy(update={"mcp_servers": (*turn.role.mcp_servers, *servers)}),
        )
        for turn in turns
    )


def check_prior(task: Task, needs: Needs) -> None:
    """Refuse an agent that cannot load the trajectory that the task begins with.

    Raises:
        PriorContextError: The agent neither loads a trajectory nor runs the solution.
    """
    role = next((role for role, need in needs if not need.solution), None)
    if task.parts.prior is not None and role is not None:
        raise PriorContextError(
            f"the task begins with a prior trajectory, and agent {role.agent!r} cannot load it",
            where=str(task.parts.prior),
        )


def _check_steps(task: Task) -> None:
    if not task.steps:
        return
    has_nudges = bool(task.config.user.nudges)
    if has_nudges or any(step.agent.max_turns > 1 for step in task.steps):
        raise TaskError(
            "a task with steps has only the prompts of its steps",
            where=f"task.toml:{'user.nudges' if has_nudges else 'agent.max_turns'}",
            hint="turn each further prompt into a step",
        )


class _RoleResolver:
    """Completes roles with the time limit, tool servers and skills of one task or step."""

    def __init__(self, task: Task, prefix: str, origins: Origins) -> None:
        self._task = task
        self._prefix = prefix
        self._origins = origins

    def resolve(self, role: Role, skills: Path | None) -> Role:
        if self._prefix:
            self._origins.copy(f"role.{role.name}", f"{self._prefix}role.{role.name}")
        environment = self._task.config.environment
        update: dict[str, object] = {}
        limit = self._task.config.agent.timeout_sec
        is_set = "timeout_sec" in role.model_fields_set
        if limit is not None and (not is_set or limit < role.timeout_sec):
            update["timeout_sec"] = limit
            self._note(role, "timeout_sec", f"{self._prefix}agent.timeout_sec")
        if environment.mcp_servers:
            update["mcp_servers"] = (*role.mcp_servers, *environment.mcp_servers)
            self._note(role, "mcp_servers", "environment.mcp_servers")
        if skills is None and role.skills_dir is None and environment.skills_dir is not None:
            update["skills_dir"] = environment.skills_dir
            self._note(role, "skills_dir", "environment.skills_dir")
        if skills is not None and role.skills_dir is None:
            update["skills_dir"] = SKILLS_DIR
            self._note(role, "skills_dir", "skill_mode")
            if not role.skills:
                names = (entry.name for entry in skills.iterdir() if entry.is_dir())
                update["skills"] = tuple(sorted(names))
                self._note(role, "skills", "skill_mode")
        return role.model_copy(update=update) if update else role

    def _note(self, role: Role, field: str, source: str) -> None:
        name = f"{self._prefix}role.{role.name}.{field}"
        self._origins.note(name, self._origins.find(source))
