"""The steps of a task with several steps, as Harbor's step results.

Source of the format: harbor 0.24.0, `StepResult` and `TrialPaths`.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchflow_contracts import (
    FinishedRollout,
    NodeError,
    NodeFailed,
    NodeScored,
    RolloutNode,
    StoreError,
    VerifyResult,
)
from benchflow_kernel import step_verdicts, verdict_name

from .outcome import grading_error, info_of, rewards
from .steps import spent
from .times import span, verified_since

_FOLDER: Final = re.compile(r"[^/\\\x00-\x1f]{0,199}[^/\\\x00-\x1f. ]")


@dataclass(frozen=True, slots=True)
class GradedStep:
    """A step of the task that was graded on the way to a leaf."""

    name: str
    nodes: Sequence[RolloutNode]
    """The nodes of the step, in order. Empty if the agent made no step."""
    end: RolloutNode
    """The node that was graded."""
    verdict: VerifyResult


def graded_steps(leaf: RolloutNode) -> list[GradedStep]:
    """Return the graded steps on the way to `leaf`. A task of one prompt has none.

    Raises:
        StoreError: A step's name is not a file name, so another program wrote the rollout.
    """
    parts: list[GradedStep] = []
    path, begun = leaf.path, 0
    for name, (node, verdict) in step_verdicts(leaf).items():
        if not _FOLDER.fullmatch(name):
            hint = "was this rollout's log changed?"
            raise StoreError(f"{name!r} cannot be the name of a step", hint=hint)
        end = path.index(node) + 1
        parts.append(GradedStep(name, path[begun:end], node, verdict))
        begun = end
    return parts


def step_result(
    rollout: FinishedRollout, part: GradedStep, own: Collection[RolloutNode]
) -> dict[str, Any]:
    """Return Harbor's `StepResult`.

    Count only the tokens of the nodes in `own`, as the trial does.
    """
    found = rewards(part.verdict, rollout.task_format)
    scored = _scored(rollout, part)
    error = _of_agent(rollout, part, scored) or grading_error(part.verdict)
    ended = rollout.finished_at if scored is None else scored.ts
    result: dict[str, Any] = {
        "step_name": part.name,
        "verifier_result": None if found is None else {"rewards": found},
        "exception_info": None if error is None else info_of(error, ended),
    }
    steps = [node.step for node in part.nodes if node.step is not None]
    if steps:
        result["agent_result"] = spent(rollout, [node for node in part.nodes if node in own])
        result["agent_execution"] = span(steps[0].started_at, steps[-1].finished_at)
    begun = None if scored is None else verified_since(rollout, part.end, scored.ts)
    if begun is not None:
        result["verifier"] = span(begun, ended)
    return result


def _scored(rollout: FinishedRollout, part: GradedStep) -> NodeScored | None:
    name = verdict_name(part.name)
    events = (e for e in rollout.events if isinstance(e, NodeScored) and e.name == name)
    return next((e for e in events if e.node == part.end.id), None)


def _of_agent(
    rollout: FinishedRollout, part: GradedStep, scored: NodeScored | None
) -> NodeError | None:
    """Return the agent's error. An error after the verdict does not belong to the step."""
    if not part.nodes or scored is None:
        return None
    events = (e for e in rollout.events if isinstance(e, NodeFailed) and e.node == part.end.id)
    return next((e.error for e in events if e.seq < scored.seq), None)
