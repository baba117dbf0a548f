"""Resolve: decide every value of a rollout before anything is started."""

from .plan import SOLUTION_DIR, JudgePlane, Plan, Planes, SharedFiles
from .resolve import (
    Contributions,
    EnvironmentNeeds,
    Schedule,
    agent_of,
    environment_needs,
    make_plan,
    planned_roles,
    resolve,
)
from .settings import Origin, OriginKind, Setting, to_json
from .turns import SKILLS_DIR, LoweredTurn, lower_scenes

__all__ = [
    "SKILLS_DIR",
    "SOLUTION_DIR",
    "Contributions",
    "EnvironmentNeeds",
    "JudgePlane",
    "LoweredTurn",
    "Origin",
    "OriginKind",
    "Plan",
    "Planes",
    "Schedule",
    "Setting",
    "SharedFiles",
    "agent_of",
    "environment_needs",
    "lower_scenes",
    "make_plan",
    "planned_roles",
    "resolve",
    "to_json",
]
