"""Groups of rollouts as a trainer takes them: samples, and each leaf that is not trained on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchflow_contracts import (
    AdvantageEstimator,
    FinishedRollout,
    RolloutNode,
    Sample,
    SharedPrefix,
    TrainingOptions,
)
from pydantic import Field

from .advantages import with_group_advantages
from .rows import is_tampered
from .samples import samples_of

ExcludedReason = Literal[
    "failed",
    "unscored",
    "tampered",
    "counterfactual",
    "truncated",
    "mixed-versions",
    "inexact",
    "no-tokens",
    "no-version",
    "no-advantage",
    "too-long",
    "missing",
    "surplus",
    "imported",
]
"""Why a leaf is not trained on.

`failed`: the rollout or the branch ended with an error. `unscored`: graded without a score.
`tampered`: the agent may have steered the verdict. `counterfactual`: the task's user never gives
the answers on the way. `truncated`: a limit on tokens or requests ended the last turn.
`mixed-versions`: several versions of the weights sampled it. `inexact`: tokens or log-probabilities
were not recorded, or a prompt does not begin with the tokens before it. `no-tokens`: no token has a
log-probability. `no-version`: the weights are unknown. `no-advantage`: the group has no baseline.
`too-long`: longer than the trainer's limit. `missing`: fewer leaves came than were requested.
`surplus`: more leaves came than were requested. `imported`: BenchFlow did not run the rollout.
"""


class TrainerOptions(TrainingOptions):
    """What a live trainer trains on.

    `advantage` is by default `intra+inter`. With `require_tokens`, an inexact sample is left out
    and counted; an export refuses it instead.
    """

    # The options are frozen, so a narrower type is safe.
    shared_prefix: SharedPrefix = "per_leaf"  # pyright: ignore[reportIncompatibleVariableOverride]
    """How often the tokens that several leaves share are trained on: once, per_leaf."""
    assumed_version: int | None = Field(default=None, ge=0)
    """The version of the weights of samples that do not name one; without it they are left out."""

    @property
    def estimator(self) -> AdvantageEstimator:
        """The advantage of the sampled tokens."""
        return self.advantage or "intra+inter"


@dataclass(frozen=True, slots=True)
class ExcludedLeaf:
    """A leaf, or a rollout without leaves, that a trainer must not train on."""

    reason: ExcludedReason
    rollout: str = ""
    leaf: str = ""
    detail: str = ""
    """For a reader. It may come from an agent: do not trust the text."""
    sample: Sample | None = None
    """Set if the leaf has a score that is one of the policy: the return counts in the baseline."""

    @property
    def reward(self) -> float | None:
        """The return, which counts in the baseline of the group; `None` if the leaf has none."""
        return None if self.sample is None else self.sample.reward

    def __str__(self) -> str:
        """Return one line with the rollout, the leaf and the reason."""
        name = "/".join(part for part in (self.rollout, self.leaf) if part) or "a rollout"
        return f"{name}: {self.reason}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The rollouts of one task that a trainer compares with each other.

    Each sample has the advantages `intra`, `process`, and over the group `inter` and
    `intra+inter`.
    """

    task_id: str
    samples: tuple[Sample, ...]
    excluded: tuple[ExcludedLeaf, ...] = ()
    policy_version: int | None = None
    """The version of the weights when the first rollout began: no older one sampled a token."""

    def counts(self) -> dict[str, int]:
        """Return numbers for a trainer's log: excluded leaves by reason, and what is trained on.

        `breaks`, `repeated_tokens` and `missing_logprobs` are those of the samples. `truncated`,
        `mixed_versions` and `suspicious` count samples that are trained on all the same.
        `answer_weights` counts samples whose `answer_weight` is not 1.
        """
        counts: Counter[str] = Counter(
            f"excluded_{each.reason.replace('-', '_')}" for each in self.excluded
        )
        counts["samples"] = len(self.samples)
        for sample in self.samples:
            counts["breaks"] += sample.breaks
            counts["repeated_tokens"] += sample.repeated_tokens
            counts["missing_logprobs"] += sample.missing_logprobs
            counts["truncated"] += sample.is_truncated
            counts["mixed_versions"] += len(sample.policy_versions) > 1
            counts["mixed_calls"] += sample.mixed_calls
            counts["sampling_masks"] += sample.has_sampling_masks
            counts["suspicious"] += sample.integrity == "suspicious"
            counts["answer_weights"] += sample.answer_weight != 1
        return dict(counts)


def group_rollouts(
    task_id: str,
    rollouts: Iterable[FinishedRollout | ExcludedLeaf],
    options: TrainerOptions | None = None,
    policy_version: int | None = None,
) -> RolloutGroup:
    """Return the group of finished and lost rollouts of one task.

    A leaf is in `samples` if a trainer may train on it, or else in `excluded` with the reason. The
    returns of truncated, inexact and mixed samples count in the baseline, because the policy got
    them. Returns below answers that the task's user never gives do not count.
    """
    excluded: list[ExcludedLeaf] = []
    samples: list[Sample] = []
    may_import = options is not None and options.imported == "train"
    for rollout in rollouts:
        if isinstance(rollout, ExcludedLeaf):
            excluded.append(rollout)
            continue
        if rollout.imported_from is not None and not may_import:
            name = rollout.tree.rollout_id
            excluded.append(ExcludedLeaf("imported", name, detail=rollout.imported_from))
            continue
        excluded += [_unscored(rollout, leaf) for leaf in rollout.tree.leaves if _lacks(leaf)]
        samples += samples_of(rollout)
    return group_samples(task_id, samples, excluded, options, policy_version)


def group_samples(
    task_id: str,
    samples: Iterable[Sample],
    lost: Iterable[ExcludedLeaf] = (),
    options: TrainerOptions | None = None,
    policy_version: int | None = None,
) -> RolloutGroup:
    """Return the group of the samples of one task, as `group_rollouts` does.

    `lost` are the leaves without a return.
    """
    options = options or TrainerOptions()
    excluded = list(lost)
    chosen: list[Sample] = []
    for each in samples:
        sample = each.with_options(options)
        if sample.answer == "user" or options.counterfactual:
            chosen.append(sample)
        else:
            excluded.append(ExcludedLeaf("counterfactual", sample.tree, sample.leaf, sample.answer))
    trained: list[Sample] = []
    for sample in with_group_advantages(chosen):
        fault = _fault(sample, options)
        if fault is None:
            trained.append(sample)
        else:
            reason, detail = fault
            excluded.append(ExcludedLeaf(reason, sample.tree, sample.leaf, detail, sample))
    return RolloutGroup(task_id, tuple(trained), tuple(excluded), policy_version)


def _lacks(leaf: RolloutNode) -> bool:
    return leaf.reward is None


def _unscored(rollout: FinishedRollout, leaf: RolloutNode) -> ExcludedLeaf:
    """Return why a leaf without a return has none."""
    tree = rollout.tree
    error = leaf.error or tree.error
    if is_tampered(leaf):
        return ExcludedLeaf("tampered", tree.rollout_id, leaf.id)
    if error is not None:
        detail = f"{error.boundary}: {error.type}: {error.message}"
        return ExcludedLeaf("failed", tree.rollout_id, leaf.id, detail)
    verdict = leaf.results.get("reward")
    detail = "never graded" if verdict is None else verdict.error or ""
    return ExcludedLeaf("unscored", tree.rollout_id, leaf.id, detail)


def _fault(sample: Sample, options: TrainerOptions) -> tuple[ExcludedReason, str] | None:
    """Return why a sample must not be trained on, or `None`."""
    if sample.is_truncated and options.truncated == "mask":
        return "truncated", sample.stop_condition or "length"
    versions = sample.policy_versions
    if len(versions) > 1 and options.mixed_versions == "mask":
        return "mixed-versions", ", ".join(versions)
    if not any(span.is_trainable for span in sample.spans):
        return "no-tokens", f"{sample.mixed_calls} mixed calls" if sample.mixed_calls else ""
    if options.require_tokens and (sample.breaks or sample.missing_logprobs):
        return "inexact", f"{sample.breaks} breaks, {sample.missing_logprobs} without logprobs"
    return None
