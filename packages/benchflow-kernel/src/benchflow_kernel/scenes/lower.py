"""Convert the declared scenes to a list of turns."""

from collections import Counter
from dataclasses import dataclass

from benchflow_contracts import (
    Role,
    UsageError,
)

from benchflow_kernel.config import RolloutConfig, Scene


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
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise UsageError(f"scene {scene.name!r} declares role {twice[0]!r} twice")
    roles = {role.name: _merge(role, scene) for role in scene.roles}
    lowered: list[LoweredTurn] = []
    for turn in scene.turns:
        if turn.role not in roles:
            raise UsageError(
                f"scene {scene.name!r} has a turn of role {turn.role!r}, which it does not declare",
                hint=f"declared here: {', '.join(sorted(roles))}",
            )
        lowered.append(LoweredTurn(scene=scene.name, role=roles[turn.role], prompt=turn.prompt))
    return lowered


def _merge(role: Role, scene: Scene) -> Role:
    return role if scene.skills is None else role.model_copy(update={"skills": scene.skills})
