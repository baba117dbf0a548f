"""Trainer rows: the record of one leaf, and the rows of a rollout and of a job."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import (
    AnswerSource,
    Credit,
    Event,
    FinishedRollout,
    NodeScored,
    PhaseEntered,
    RolloutNode,
    RolloutTree,
    SampleGroup,
    Step,
    StoreError,
    TrainingOptions,
    VerifyResult,
)
from benchflow_kernel import answer_weights, inter_advantages, step_verdicts

from .messages import steps_to_messages
from .rows import (
    UNMEASURED,
    Span,
    ToolCallFormat,
    export_trajectories_to_jsonl,
    trajectory_to_verifiers_record,
    verifiers_timing,
)

TRUNCATED: Final = frozenset({"max_tokens", "max_turn_requests"})
"""The stop reasons of a turn that a limit ended."""


def group_of(rollout: FinishedRollout) -> SampleGroup:
    """Return the group of a rollout: its task and digest, its job, and its first weights.

    Rollouts of one prompt that began with other weights, or in another job, are in another group,
    because returns of different policies cannot be compared.
    """
    versions = (call.policy_version for call in rollout.calls.values() if call.purpose == "main")
    return SampleGroup(
        task_id=rollout.tree.task_id,
        task_digest=rollout.task_digest,
        job=rollout.job,
        policy_version=next((each for each in versions if each is not None), None),
    )


def answer_of(weight: float | None) -> AnswerSource:
    """Return who gave the answers on the way to a leaf, by their probability."""
    if weight is None:
        return "unknown"
    return "user" if weight > 0 else "counterfactual"


def leaf_timing(events: Sequence[Event], leaf: RolloutNode) -> dict[str, Any]:
    """Return the trainer row's `timing` of `leaf` from the log of its rollout.

    `setup` is the setup of the first world. The setup of later forks is part of `generation`,
    which ends with the leaf's last step.
    """
    path = {node.id for node in leaf.path}
    phases = [e for e in events if isinstance(e, PhaseEntered) and e.node in path]
    if not phases:
        return verifiers_timing()
    begin = phases[0].ts
    ready = next((e.ts for e in phases if e.phase == "execute"), begin)
    steps = leaf.steps
    return verifiers_timing(
        start_time=events[0].ts,
        setup=Span(begin, ready),
        generation=Span(begin, steps[-1].finished_at if steps else ready),
        scoring=_scoring(events, phases, leaf),
    )


def _scoring(events: Sequence[Event], phases: Sequence[PhaseEntered], leaf: RolloutNode) -> Span:
    verdicts = (e for e in events if isinstance(e, NodeScored) and e.name == "reward")
    scored = next((e for e in verdicts if e.node == leaf.id), None)
    if scored is None:
        return UNMEASURED
    starts = [e.ts for e in phases if e.phase == "verify" and e.ts <= scored.ts]
    return Span(starts[-1], scored.ts) if starts else UNMEASURED


def leaf_record(
    rollout: FinishedRollout, leaf: RolloutNode, *, tool_calls: ToolCallFormat = "verifiers"
) -> dict[str, Any]:
    """Return the Verifiers record of the trajectory that ends in `leaf`.

    The times come from the events of the rollout.
    """
    tree = rollout.tree
    steps = leaf.steps
    verdict = leaf.results.get("reward") or VerifyResult.unscored("the leaf was never graded")
    verdict = verdict.counted()
    stop = next((step.stop_reason for step in reversed(steps) if step.stop_reason), None)
    weight = answer_weights(tree)[leaf.id]
    return trajectory_to_verifiers_record(
        task_id=tree.task_id,
        messages=steps_to_messages(steps, instruction=rollout.instruction),
        verify_result=verdict,
        model=rollout.model,
        environment=_environment(tree),
        is_truncated=stop in TRUNCATED,
        stop_condition=stop,
        timing=leaf_timing(rollout.events, leaf),
        token_usage=_token_usage(steps),
        tool_calls=tool_calls,
        info={
            "rollout_id": tree.rollout_id,
            "leaf": leaf.id,
            "branch": [node.label for node in leaf.path if node.label is not None],
            "path_values": [
                {"node": node.id, "value": node.value.mean} for node in leaf.path if node.value
            ],
            "group": group_of(rollout).model_dump(),
            "answer": answer_of(weight),
            "answer_weight": weight,
            "policy_versions": _policy_versions(rollout, steps),
            "advantage": None if leaf.credit is None else leaf.credit.model_dump(),
            **_task_steps(leaf),
            **_origin(rollout),
        },
    )


_ROWS: Final = Path("trainer") / "verifiers.jsonl"
"""The rows below a rollout's directory, still without the advantage over their group."""


def write_trainer_rows(directory: Path, rollout: FinishedRollout) -> None:
    """Write `trainer/verifiers.jsonl` of the rollout in `directory`: one row per scored leaf.

    Leaves below answers that the task's user may never give are left out.

    Raises:
        StoreError: The file cannot be written.
    """
    records = (leaf_record(rollout, leaf) for leaf in rollout.tree.leaves)
    rows = (row for row in records if is_chosen(row, TrainingOptions()))
    try:
        export_trajectories_to_jsonl(rows, directory / _ROWS)
    except OSError as error:
        raise StoreError(f"cannot write rollout {directory.name!r}: {error}") from error


def is_chosen(row: Mapping[str, Any], options: TrainingOptions) -> bool:
    """Return whether the options choose the row by the answers on the way to its leaf."""
    return options.counterfactual or row["info"]["answer"] == "user"


def read_trainer_rows(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that `write_trainer_rows` wrote; none if the rollout was refused."""
    path = directory / _ROWS
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def with_inter_advantage(
    read: Callable[[], Iterator[dict[str, Any]]], job: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the trainer rows of a job, each with its `info.advantage.inter`.

    The rows of one `info.group` are one group; see `inter_advantages`. A row without other trees
    in its group does not change. `read` is called twice, so that the rows of a job need not be in
    memory at once. `job` is the name of their job.
    """
    returns: dict[str, dict[str, dict[str, float]]] = {}
    weights: dict[tuple[str, str], float] = {}
    for row in read():
        info = row["info"]
        if row["reward"] is not None:
            leaves = returns.setdefault(_group(info), {}).setdefault(info["rollout_id"], {})
            leaves[info["leaf"]] = row["reward"]
            weight = info.get("answer_weight")
            if weight is not None:
                weights[info["rollout_id"], info["leaf"]] = weight
    inter: dict[tuple[str, str], float] = {}
    for trees in returns.values():
        inter |= inter_advantages(trees, weights)
    for row in read():
        info = row["info"]
        advantage = inter.get((info["rollout_id"], info["leaf"]))
        if job is not None and "group" in info:
            info["group"]["job"] = job
        if advantage is not None:
            credit = Credit.model_validate(info.get("advantage") or {})
            info["advantage"] = credit.model_copy(update={"inter": advantage}).model_dump()
        yield row


def _group(info: Mapping[str, Any]) -> str:
    # A row of version 0.8 and before has no group.
    return json.dumps(info.get("group") or info["task_id"])


def _policy_versions(rollout: FinishedRollout, steps: Sequence[Step]) -> list[str]:
    """Return the weights that sampled the steps, in the order of their first use."""
    idents = (ident for step in steps for ident in step.model_calls)
    calls = (rollout.calls[ident] for ident in idents if ident in rollout.calls)
    sampled = (call for call in calls if call.purpose == "main" and not call.replayed)
    versions = (v for call in sampled for v in (call.policy_version, call.end_policy_version))
    return list(dict.fromkeys(version for version in versions if version is not None))


def _task_steps(leaf: RolloutNode) -> dict[str, Any]:
    """Return the verdict on each step of the task, with the node where the step ended."""
    verdicts = step_verdicts(leaf).items()
    steps = [
        {"name": name, "node": node.id, "reward": r.counted().reward}
        for name, (node, r) in verdicts
    ]
    return {"task_steps": steps} if steps else {}


def _origin(rollout: FinishedRollout) -> dict[str, str]:
    source = rollout.imported_from
    return {} if source is None else {"imported_from": source}


def _environment(tree: RolloutTree) -> str | None:
    identity = cast("Mapping[str, Any]", tree.meta.get("identity", {}))
    return identity.get("environment")


def _token_usage(steps: Sequence[Step]) -> dict[str, float] | None:
    usages = [step.usage for step in steps if step.usage is not None]
    if not usages:
        return None
    return {
        "input_tokens": float(sum(usage.input_tokens for usage in usages)),
        "output_tokens": float(sum(usage.output_tokens for usage in usages)),
    }
