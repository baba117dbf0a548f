"""RolloutRecord: the summary of a rollout, one line of `results.jsonl`."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from ._model import Model, RareModel
from .cause import Cause
from .gateway import EndpointProbe
from .judge import JudgeUse
from .step import Usage
from .tree import Fidelity, NodeError, Status, Value
from .verdict import NO_REWARDS, Grading, Integrity


class Prior(RareModel):
    """The work that an earlier attempt did and paid for. The tree of a later one has it, too."""

    steps: int = Field(default=0, ge=0)
    model_calls: int = Field(default=0, ge=0)
    usage: Usage = Usage()
    cost_usd: float | None = None
    """`None`: no cost is known."""


class BeganFrom(Model):
    """Where an attempt began: at the start of the task, or at a checkpoint of an earlier one."""

    point: Literal["start", "checkpoint", "grading"] = "start"
    """`grading`: the agents had ended, and the attempt only graded their world."""
    rollout: str | None = None
    """The earlier attempt, if there is one."""
    directory: str | None = None
    """The directory of the earlier attempt."""
    checkpoint: str | None = None
    """The name of the checkpoint below `checkpoints/` of the earlier attempt."""
    fidelity: Fidelity | None = None
    reason: str | None = None
    """Why a later checkpoint, or any checkpoint, was not used."""
    prior: Prior | None = None
    """The part of the tree that earlier attempts paid for. Subtract it before you add attempts."""


class LearnerVersion(RareModel):
    """One version of a learner store, which the rollouts of a sequential job share."""

    generation: int = Field(default=0, ge=0)
    """The number of the version. 0 is the empty store before the first rollout."""
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """The digest of the files; `None` without a file."""
    rollout: str | None = None
    """The rollout that made the version. Its directory has the files."""


class LearnerUse(RareModel):
    """The version of the learner store that a rollout began with, and the one that it made."""

    before: LearnerVersion = LearnerVersion()
    after: LearnerVersion | None = None
    """`None`: `before` stays the newest version."""
    refused: str | None = None
    """Why the files that the agent left are not a version."""


class RolloutRecord(Model):
    """`result.json`. An unscored rollout has `reward: null` and a cause."""

    schema_version: Literal["1.0"] = "1.0"
    rollout_id: str
    task_id: str
    task_digest: str
    agent: str
    model: str | None
    sandbox: str
    status: Status
    """`ungraded`: the agent ran to its end, and no grading gave a verdict."""
    reward: float | None = None
    """V of the root. For a linear rollout, V is its reward."""
    value: Value | None = None
    rewards: Mapping[str, float] | None = None
    """The items of the verdict on the only leaf; `null` for a tree, or without a score."""
    grading: Grading | None = None
    integrity: Integrity | None = None
    """The worst integrity among the verdicts on the leaves."""
    tampered: int = 0
    """The number of leaves whose verdict does not count: the agent may have steered the tests."""
    claimed: float | None = None
    """The mean of all verdicts, also those that do not count. `None` if every verdict counts."""
    steps: int = 0
    asks: int = 0
    leaves: int = 0
    scored: int = 0
    branches: int = 0
    error: NodeError | None = None
    """The first failure, with the boundary where it happened."""
    cause: Cause | None = None
    """The cause of a missing verdict. If it is the agent, the rollout still has a score."""
    images: Mapping[str, str] = {}
    """The images of the first sandbox, as `main`, and of each service. An image of a registry is
    `NAME@sha256:HEX`, another one `sha256:HEX`. Empty if the sandbox came from a checkpoint."""
    verifier_images: Mapping[str, str] = {}
    """The images of grading sandboxes that are not forks of the agent's sandbox, by verdict."""
    slot: str | None = None
    """The slot of the job's plan: `TASK#REPEAT`, or `TASK#REPEAT@VARIANT`."""
    attempt: int | None = Field(default=None, ge=1)
    """The number of the try of the slot, from 1. `None` outside a job."""
    epoch: str | None = None
    """The run of the job that made the attempt. A later run has a greater one."""
    began_from: BeganFrom = BeganFrom()
    """The start of the task, or the checkpoint of the earlier attempt that this one resumed."""
    learner: LearnerUse | None = None
    """The use of the learner store, in a sequential job."""
    judge: JudgeUse | None = None
    """What the rewards used of the judge's model, if they asked it. Not part of the agent's use."""
    seed: int | None = None
    """The seed of the rollout, if one was set."""
    deadline_sec: float | None = None
    """The seconds that the rollout had until its grading, if they were limited."""
    endpoint_probe: EndpointProbe | None = None
    """The tokens that the model endpoint returns; `None` if the endpoint was not probed."""
    finished_at: float
    """Seconds since the epoch."""

    @model_validator(mode="after")
    def _upgrade_older_record(self) -> Self:
        error = self.error
        has_cause = error is not None and error.type != NO_REWARDS
        if self.status == "completed" and self.reward is None and not self.tampered and has_cause:
            object.__setattr__(self, "status", "ungraded")
        return self

    @property
    def is_final(self) -> bool:
        """Whether a resumed job does not run the rollout again: it ended and was graded."""
        return self.status == "completed" and (self.reward is not None or self.tampered > 0)

    @property
    def variant(self) -> str | None:
        """The variant of the job, `None` in a job without variants."""
        _, _, replication = (self.slot or "").rpartition("#")
        return replication.partition("@")[2] or None

    def counted_reward(self, *, count_tampered: bool = False) -> float | None:
        """Return the reward that means count, `None` without a score.

        A rollout whose verdict the agent may have steered counts as 0; with `count_tampered`, its
        verdict counts.
        """
        if count_tampered and self.claimed is not None:
            return self.claimed
        return 0.0 if self.reward is None and self.tampered else self.reward
