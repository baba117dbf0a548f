"""RolloutConfig: everything that shapes a rollout and is not the task."""

from pathlib import Path
from typing import Annotated, Literal

from benchflow_contracts import (
    Endpoint,
    Fidelity,
    Model,
    ResourceLimits,
    RewardFiles,
    Role,
    RolloutIdentity,
)
from pydantic import Field

SkillMode = Literal["no-skill", "with-skill"]


class Turn(Model):
    """One prompt to one role. `prompt=None` is the task's instruction."""

    role: str = "agent"
    prompt: str | None = None


class Scene(Model):
    """A declared span with its own roles and skills: authoring sugar.

    It lowers to per-turn configuration and has no object at run time.
    """

    name: str = "main"
    roles: tuple[Role, ...] = Field(min_length=1)
    turns: tuple[Turn, ...] = (Turn(),)
    skills: tuple[str, ...] | None = None
    """Overrides the roles' skills within this scene."""


class BranchBudget(Model):
    """Limits of the branching of one rollout.

    A reached limit is not a failure: the rollout continues without forks, and the tree has the
    reason.
    """

    max_children: int = Field(default=8, ge=2)
    """Per fork; an Ask with more options is not forked."""
    max_depth: int = Field(default=1, ge=1)
    """Forks on one path from the root."""
    max_forks: int | None = Field(default=None, ge=1)
    """Forks in the whole rollout."""
    concurrency: int = Field(default=2, ge=1)
    """Children that run at once."""
    wall_sec: float | None = Field(default=None, gt=0)
    """From the start of the rollout; no fork begins later."""
    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of the whole rollout's model calls, as a gateway counts them."""
    disk_mb: int | None = Field(default=None, gt=0)
    """Bytes of the checkpoints that are held at once."""
    memory_mb: int | None = Field(default=None, gt=0)
    """Memory of the machine that must stay free when a fork begins."""


class _Branch(Model):
    budget: BranchBudget = BranchBudget()
    require: Fidelity | None = None
    """Refuse to fork below this fidelity."""
    then: "BranchPolicy | None" = None
    """How children fork in turn; `None` is the same policy again, within the budget.

    Each policy counts its own children and depth. The outermost one's other bounds hold
    for the whole rollout.
    """


class AskUserBranch(_Branch):
    """Fork at each branchable question: one child per option."""

    kind: Literal["ask-user"] = "ask-user"


class GroupBranch(_Branch):
    """Fork once into `n` children that share the prefix: a GRPO group as a tree."""

    kind: Literal["group"] = "group"
    n: int = Field(ge=2)
    at: int = Field(default=0, ge=0)
    """The turn before whose prompt the fork is."""


class ValueBranch(_Branch):
    """Estimate V(s) along the path: `n` children at each `every`-th state.

    A state is the start of a turn or a question to the user. The children are scored. The path
    then continues independently of them, and its own return counts beside theirs.
    """

    kind: Literal["value"] = "value"
    n: int = Field(ge=2)
    every: int = Field(default=1, ge=1)


class BestOfBranch(_Branch):
    """Fork into `n` children, score each after its turn, and go on from the best.

    The others stay in the tree as scored leaves.
    """

    kind: Literal["best-of"] = "best-of"
    n: int = Field(ge=2)
    at: int = Field(default=0, ge=0)
    """The turn that every child runs before they are compared."""


BranchPolicy = Annotated[
    AskUserBranch | GroupBranch | ValueBranch | BestOfBranch, Field(discriminator="kind")
]


class Keep(Model):
    """Which checkpoints outlive their rollout, so that it can be branched afterwards."""

    which: Literal["none", "forks", "all"] = "none"
    budget_mb: int = Field(default=2048, gt=0)
    """On disk, per rollout; the oldest are dropped first."""


class Deadlines(Model):
    """How long each phase of the lifecycle may take, in seconds."""

    start: float = Field(default=120, gt=0)
    provision: float = Field(default=300, gt=0)
    connect: float = Field(default=120, gt=0)
    execute: float = Field(default=7200, gt=0)
    verify: float = Field(default=900, gt=0)
    teardown: float = Field(default=60, gt=0)


class RolloutConfig(Model):
    """What one rollout is run with."""

    scenes: tuple[Scene, ...] = (Scene(roles=(Role(),)),)
    branch: BranchPolicy | None = None
    keep: Keep = Keep()
    skill_mode: SkillMode = "no-skill"
    skills_dir: Path | None = None
    """A host directory of skills to show instead of the task's, with `with-skill`."""
    model: Endpoint | None = None
    """The endpoint behind the relay, for agents that act through a model."""
    limits: ResourceLimits | None = None
    """Overrides the task's."""
    deadlines: Deadlines = Deadlines()
    isolation: Literal["hermetic", "twin", "shared"] | None = None
    """Overrides the verifier's."""
    capture_state: bool = True
    """Whether the environment's state is read at every leaf, for graders and diffs."""
    offline: bool = False
    """Sandboxes reach only a model endpoint, whatever network the task requests."""
    timeout_multiplier: float = Field(default=1, gt=0, allow_inf_nan=False)
    """Multiplies the task's times for its agent, its tests and its images."""
    user: Literal["scripted", "simulated", "auto", "human"] | None = None
    """Overrides the mode of the task's user."""
    forward_env: tuple[str, ...] = ()
    """The operator's variables that tasks may have, in `host_env`; any other stays here."""
    expects_changes: tuple[str, ...] = ()
    """Beside the verifier's own `expects_changes`."""
    reward_files: RewardFiles | None = None
    """Overrides the verifier's."""
    identity: RolloutIdentity = RolloutIdentity()
    """What the caller knows of the rollout. The kernel adds the rest for each sandbox."""

    @classmethod
    def single(cls, agent: str, *, model: str | None = None) -> "RolloutConfig":
        """Return the usual case: one agent, one turn, the task's instruction."""
        return cls(scenes=(Scene(roles=(Role(agent=agent, model=model),)),))
