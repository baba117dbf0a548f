"""The result of an ended rollout, in the form that its request chose."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from benchflow_contracts import (
    AdvantageEstimator,
    Fidelity,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Sample,
    TrainingOptions,
)
from benchflow_export import episode, leaf_record, samples_of
from benchflow_export.trainer import answer_of
from benchflow_kernel import answer_weights
from benchflow_serve_client import LeafScore, Render, RolloutResult, RolloutStatus
from benchflow_store import GroupRecord, StoredRollout, apply_groups

_TOKENS: Final = ("leaves", "graph", "turns")
"""The renders with token ids."""
_WORST_FIRST: Final[tuple[Fidelity, ...]] = ("replay", "state", "live")


def render_result(
    status: RolloutStatus,
    render: Render,
    options: TrainingOptions,
    directory: Path | None,
    scored: GroupRecord | None = None,
) -> RolloutResult:
    """Return the result of a rollout from the files of its last attempt.

    Only scored leaves whose answers the task's user may give are samples, unless `options` says
    otherwise. The reasons of the others are counted. `scored` has the verdicts on its group.

    Raises:
        StoreError: A file of the rollout is damaged.
    """
    shared: Literal["once", "per_leaf"] = "once" if render == "graph" else "per_leaf"
    result = RolloutResult(rollout=status, render=render, shared_prefix=shared)
    if directory is None or not (stored := StoredRollout(directory)).has_events:
        return result
    finished = stored.read_finished()
    if scored is not None:
        apply_groups(finished.tree, [scored])
    rows, left_out = render_samples(finished, render, options)
    return result.model_copy(update={"samples": rows, "left_out": left_out})


def render_samples(
    rollout: FinishedRollout, render: Render, options: TrainingOptions
) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
    """Return the rows of a rollout, and the number of leaves that were left out by reason."""
    samples, left_out = choose_samples(rollout, options, needs_tokens=render in _TOKENS)
    return _rows(rollout, samples, render, options.advantage), left_out


def choose_samples(
    rollout: FinishedRollout, options: TrainingOptions, *, needs_tokens: bool
) -> tuple[list[Sample], dict[str, int]]:
    """Return what may be trained on, and the number of leaves that were left out by reason."""
    left_out = Counter[str]()
    return list(_chosen(rollout, options, left_out, needs_tokens=needs_tokens)), dict(left_out)


def _chosen(
    rollout: FinishedRollout,
    options: TrainingOptions,
    left_out: Counter[str],
    *,
    needs_tokens: bool,
) -> Iterator[Sample]:
    for leaf in rollout.tree.leaves:
        if leaf.reward is None:
            verdict = leaf.results.get("reward")
            tampered = verdict is not None and verdict.reward is not None
            left_out["tampered" if tampered else "unscored"] += 1
    for each in samples_of(rollout):
        sample = each.with_options(options)
        if sample.answer != "user" and not options.counterfactual:
            left_out["counterfactual"] += 1
        elif options.mixed_versions == "mask" and len(sample.policy_versions) > 1:
            left_out["mixed_versions"] += 1
        elif needs_tokens and options.require_tokens and not _is_exact(sample):
            left_out["inexact_tokens"] += 1
        else:
            yield sample


def _is_exact(sample: Sample) -> bool:
    return bool(sample.spans) and not sample.breaks and not sample.missing_logprobs


def _rows(
    rollout: FinishedRollout,
    samples: Sequence[Sample],
    render: Render,
    estimator: AdvantageEstimator | None,
) -> list[Mapping[str, Any]]:
    if render == "leaves":
        return [sample.model_dump(mode="json") for sample in samples]
    if render == "graph":
        row = episode(samples, rollout.calls, "graph", estimator)
        return [] if row is None else [row]
    leaves = {leaf.id: leaf for leaf in rollout.tree.leaves}
    if render == "messages":
        return [leaf_record(rollout, leaves[s.leaf], tool_calls="openai") for s in samples]
    return [row for sample in samples for row in _turns(sample, rollout.calls, estimator)]


def _turns(
    sample: Sample, calls: Mapping[str, ModelCall], estimator: AdvantageEstimator | None
) -> Iterator[Mapping[str, Any]]:
    """Yield one row for each call on the way to a leaf: the tokens that it read, and sampled."""
    marks = sample.advantages.get(estimator or "intra") or (None,) * len(sample.spans)
    for span, advantage in zip(sample.spans, marks, strict=True):
        call = None if span.call is None else calls.get(span.call)
        if call is None or span.kind not in {"sampled", "replayed"}:
            continue
        yield {
            "task_id": sample.task_id,
            "tree": sample.tree,
            "leaf": sample.leaf,
            "node": span.node,
            "call": call.id,
            "prompt_token_ids": call.prompt_token_ids,
            "completion_token_ids": call.completion_token_ids,
            "logprobs": call.logprobs,
            "message": span.message,
            "is_trainable": span.is_trainable,
            "policy_version": span.policy_version,
            "end_policy_version": span.end_policy_version,
            "finish_reason": span.finish_reason,
            "temperature": span.temperature,
            "reward": sample.reward,
            "advantage": advantage,
            "answer": sample.answer,
            "answer_weight": sample.answer_weight,
            "weighting": sample.weighting,
            "is_truncated": sample.is_truncated,
        }


def leaf_scores(tree: RolloutTree) -> tuple[LeafScore, ...]:
    """Return the scores of the leaves of a tree that has ended."""
    weights = answer_weights(tree)
    return tuple(_score(leaf, weights[leaf.id]) for leaf in tree.leaves)


def leaf_score(tree: RolloutTree, node: str) -> LeafScore:
    """Return the score of one node of a tree that may still grow."""
    return _score(tree.index[node], answer_weights(tree)[node])


def _score(leaf: RolloutNode, weight: float | None) -> LeafScore:
    verdict = leaf.results.get("reward")
    forks = [n.branch.fidelity for n in leaf.path if n.branch is not None and n.branch.children]
    return LeafScore(
        node=leaf.id,
        reward=leaf.reward,
        answer=answer_of(weight),
        fidelity=next((each for each in _WORST_FIRST if each in forks), None),
        grading=None if verdict is None else verdict.grading,
        integrity=None if verdict is None else verdict.integrity,
    )
