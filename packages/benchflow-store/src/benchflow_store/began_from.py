"""Where an attempt began, and what an earlier attempt had paid for."""

from collections.abc import Mapping
from typing import Final, Literal, Self, cast

from benchflow_contracts import Fidelity, Model, ModelCall, Usage
from benchflow_kernel import CheckpointManifest
from pydantic import Field

RESUMED_FROM: Final = "resumed_from"
"""The entry of the log's first event with a `BeganFrom`."""


class Prior(Model):
    """The work that an earlier attempt did and paid for. The tree of a later one has it, too."""

    steps: int = Field(default=0, ge=0)
    model_calls: int = Field(default=0, ge=0)
    usage: Usage = Usage()
    cost_usd: float | None = None
    """`None`: no cost is known."""

    @classmethod
    def of(cls, manifest: CheckpointManifest, calls: Mapping[str, ModelCall]) -> Self:
        """Sum up the steps to a checkpoint. `calls` are the recorded calls of the attempt."""
        steps = [saved.step for saved in manifest.history if saved.step is not None]
        ids = [call for step in steps for call in step.model_calls]
        usages = [step.usage for step in steps if step.usage is not None]
        costs = [calls[i].cost_usd for i in ids if i in calls]
        known = [cost for cost in costs if cost is not None]
        return cls(
            steps=len(steps),
            model_calls=len(ids),
            usage=Usage(
                input_tokens=sum(usage.input_tokens for usage in usages),
                output_tokens=sum(usage.output_tokens for usage in usages),
                cached_tokens=sum(usage.cached_tokens for usage in usages),
            ),
            cost_usd=sum(known) if known else None,
        )


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

    @classmethod
    def of(cls, meta: Mapping[str, object]) -> Self:
        """Read the meta of a tree: of a rollout that resumed, was branched, or began anew."""
        if (resumed := meta.get(RESUMED_FROM)) is not None:
            return cls.model_validate(resumed)
        branched = cast("Mapping[str, str] | None", meta.get("continued_from"))
        if branched is None:
            return cls()
        return cls(point="checkpoint", rollout=branched["rollout_id"], checkpoint=branched["node"])
