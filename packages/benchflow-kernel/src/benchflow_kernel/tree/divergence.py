"""The first step at which two paths differ, in one tree or in two rollouts of a task."""

from collections.abc import Sequence
from typing import Literal

from benchflow_contracts import RareModel, RolloutNode, Step
from pydantic import Field

DivergenceKind = Literal["prompt", "answer", "action", "result", "end"]
"""`prompt`, `answer`: what the agent got. `action`: what the agent did. `result`: the same action
had another result. `end`: one path ends where the other one continues."""


class Divergence(RareModel):
    """The first different steps of two paths."""

    kind: DivergenceKind
    shared_steps: int = Field(ge=0)
    """The number of equal steps before."""
    a: str | None
    """The node after the different step; `None` if the path has ended."""
    b: str | None


def first_divergence(a: RolloutNode, b: RolloutNode) -> Divergence | None:
    """Return the first difference of the paths from the roots to `a` and `b`.

    Steps are compared by what the agent got and did, and by the results of its tools. Its
    reasoning, ids, usage and times do not count. The result is `None` if all steps are equal.
    """
    left, right = _with_steps(a), _with_steps(b)
    for shared, (one, other) in enumerate(zip(left, right, strict=False)):
        kind = None if one is other else _difference(one, other)
        if kind is not None:
            return Divergence(kind=kind, shared_steps=shared, a=one.id, b=other.id)
    shared = min(len(left), len(right))
    if len(left) == len(right):
        return None
    return Divergence(
        kind="end",
        shared_steps=shared,
        a=left[shared].id if len(left) > shared else None,
        b=right[shared].id if len(right) > shared else None,
    )


def _with_steps(node: RolloutNode) -> Sequence[RolloutNode]:
    return [each for each in node.path if each.step is not None]


def _difference(one: RolloutNode, other: RolloutNode) -> DivergenceKind | None:
    a, b = one.step, other.step
    assert a is not None
    assert b is not None
    if a.prompt != b.prompt:
        return "prompt"
    if _answer(a) != _answer(b):
        return "answer"
    if _action(a) != _action(b):
        return "action"
    return "result" if _results(a) != _results(b) else None


def _answer(step: Step) -> object:
    # The ids of questions are new in each session.
    answer = step.answer
    if answer is None:
        return None
    return answer.outcome, list(answer.selected.values()), list(answer.text.values())


def _action(step: Step) -> object:
    calls = [(call.name, call.title, call.raw_input) for call in step.tool_calls]
    asks = [] if step.ask is None else [question.text for question in step.ask.questions]
    return step.message, calls, asks


def _results(step: Step) -> object:
    return [(result.status, result.content) for result in step.observations]
