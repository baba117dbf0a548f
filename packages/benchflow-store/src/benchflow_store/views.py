"""View models of a rollout, for the CLI and the dashboard. They have values, not colours.

Every text in a view may come from an agent. The renderer must escape it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from benchflow_contracts import (
    Branched,
    BranchRecord,
    Cause,
    Credit,
    Event,
    NodeError,
    NodeFailed,
    NodeScored,
    NodeValued,
    PhaseEntered,
    RareModel,
    RolloutNode,
    RolloutTree,
    Status,
    Step,
    StepFinished,
    Value,
)
from benchflow_kernel import verdicts_at

LineKind = Literal["user", "thinks", "says", "does", "result", "asks"]
EventKind = Literal["phase", "branch", "step", "fork", "score", "value", "failure"]


class StepLine(RareModel):
    """One message, tool call or question in a step."""

    kind: LineKind
    text: str
    status: str | None = None
    """For a `result`: the status that the agent reported, such as `completed` or `failed`."""


class NodeView(RareModel):
    """The row of one node in a tree."""

    id: str
    parent: str | None
    label: str | None
    """The label of the branch, such as the chosen option."""
    title: str
    """One line about the step that led to the node; empty without a step."""
    fork: BranchRecord | None
    """The fork of the node, or the reason that it was not forked."""
    value: Value | None
    task_steps: Mapping[str, float | None]
    """The reward of each step of the task that ended at the node; `None` when unscored."""
    is_leaf: bool
    reward: float | None
    """For a leaf: its return; `None` when unscored."""
    error: NodeError | None
    took_sec: Mapping[str, float]
    """The seconds that the fork to this node took, by part."""
    credit: Credit | None

    @classmethod
    def of(cls, node: RolloutNode) -> "NodeView":
        """Return the row of `node`."""
        return cls(
            id=node.id,
            parent=None if node.parent is None else node.parent.id,
            label=node.label,
            title="" if node.step is None else step_title(node.step),
            fork=node.branch,
            value=node.value,
            task_steps={name: verdict.reward for name, verdict in verdicts_at(node).items()},
            is_leaf=not node.children,
            reward=None if node.children else node.reward,
            error=node.error,
            took_sec=dict(node.took_sec),
            credit=node.credit,
        )


class Segment(RareModel):
    """A run of nodes without a fork, and the segments that fork from its last node."""

    nodes: tuple[NodeView, ...]
    branches: "tuple[Segment, ...]" = ()
    hidden_leaves: int = 0
    """The number of leaves below the last node, if the view is too shallow for `branches`."""


class TreeView(RareModel):
    """A rollout as a tree."""

    rollout_id: str
    task_id: str
    status: Status
    root: Segment

    @classmethod
    def of(cls, tree: RolloutTree, *, depth: int | None = None) -> "TreeView":
        """Return the view of `tree`, with at most `depth` forks on a path."""
        return cls(
            rollout_id=tree.rollout_id,
            task_id=tree.task_id,
            status=tree.status,
            root=_segment(tree.root, math.inf if depth is None else depth),
        )


class PathNode(RareModel):
    """One node on the path to a leaf."""

    id: str
    lines: tuple[StepLine, ...]
    took_sec: Mapping[str, float]


class TrajectoryView(RareModel):
    """The path from the root to one leaf."""

    leaf: str
    leaves: int
    """The number of leaves of the whole tree."""
    status: Status
    reward: float | None
    cause: Cause | None
    """The reason that the tests did not give a verdict."""
    memory_kills: int
    """The number of the agent's processes that the memory limit killed."""
    errors: tuple[NodeError, ...]
    """The error of the rollout, then the errors on the path, without repetitions."""
    images: Mapping[str, str]
    """The image of the sandbox, `main`, and of each service."""
    nodes: tuple[PathNode, ...]
    """Nodes with a step or with the times of a fork."""

    @classmethod
    def of(cls, tree: RolloutTree, leaf: RolloutNode) -> "TrajectoryView":
        """Return the view of the path to `leaf`."""
        verdict = leaf.results.get("reward")
        kills = None if verdict is None else verdict.meta.get("agent_memory_kills")
        errors = [tree.error, *(node.error for node in leaf.path)]
        return cls(
            leaf=leaf.id,
            leaves=len(tree.leaves),
            status=tree.status,
            reward=leaf.reward,
            cause=None if verdict is None else verdict.cause,
            memory_kills=kills if isinstance(kills, int) else 0,
            errors=tuple(dict.fromkeys(error for error in errors if error is not None)),
            images=dict(tree.images),
            nodes=tuple(
                PathNode(
                    id=node.id,
                    lines=() if node.step is None else tuple(step_lines(node.step)),
                    took_sec=dict(node.took_sec),
                )
                for node in leaf.path
                if node.step is not None or node.took_sec
            ),
        )


class EventLine(RareModel):
    """The line that one event adds to a rollout that is shown while it runs."""

    kind: EventKind
    node: str
    text: str = ""
    """A phase, a label, the name of a reward, or the message of an error."""
    line: StepLine | None = None
    fork: BranchRecord | None = None
    reward: float | None = None
    """For a `score`; `None` when unscored."""
    value: Value | None = None


def step_title(step: Step) -> str:
    """Return one line for a step: its question, its last command or its message."""
    if step.ask is not None:
        return f"asks: {_in_one_line(step.ask.questions[0].text)}"
    if step.tool_calls:
        return step.tool_calls[-1].title
    return next(iter((step.message or step.reasoning).strip().splitlines()), "")


def step_lines(step: Step) -> Iterator[StepLine]:
    """Yield a line for each prompt, message, tool call and question of a step, in order."""
    if step.prompt is not None:
        yield StepLine(kind="user", text=step.prompt)
    if step.answer is not None:
        chosen = [option for ids in step.answer.selected.values() for option in ids]
        text = ", ".join([*chosen, *step.answer.text.values()]) or step.answer.outcome
        yield StepLine(kind="user", text=text)
    if step.reasoning:
        yield StepLine(kind="thinks", text=step.reasoning)
    if step.message:
        yield StepLine(kind="says", text=step.message)
    observations = {observation.tool_call_id: observation for observation in step.observations}
    for call in step.tool_calls:
        yield StepLine(kind="does", text=call.title)
        result = observations.get(call.id)
        if result is not None:
            yield StepLine(kind="result", text=result.content, status=result.status)
    if step.ask is not None:
        question = step.ask.questions[0]
        options = " | ".join(option.label for option in question.options)
        yield StepLine(kind="asks", text=f"{_in_one_line(question.text)}  [{options}]")


def event_lines(event: Event) -> Iterator[EventLine]:
    """Yield the lines that `event` adds; none if the event is not for the user's eyes.

    Only failed tool results are included.
    """
    match event:
        case PhaseEntered():
            yield EventLine(kind="phase", node=event.node, text=event.phase)
        case StepFinished():
            if event.label is not None:
                yield EventLine(kind="branch", node=event.node, text=event.label)
            for line in step_lines(event.step):
                if line.status in {None, "failed"}:
                    yield EventLine(kind="step", node=event.node, line=line)
        case Branched():
            yield EventLine(kind="fork", node=event.node, fork=event.record)
        case NodeScored():
            reward = event.result.reward
            yield EventLine(kind="score", node=event.node, text=event.name, reward=reward)
        case NodeValued():
            yield EventLine(kind="value", node=event.node, value=event.value)
        case NodeFailed(error=error):
            text = f"{error.boundary}: {error.message}"
            yield EventLine(kind="failure", node=event.node, text=text)
        case _:
            pass


def _segment(node: RolloutNode, depth: float) -> Segment:
    # Recursive only at forks: a long rollout is deep.
    chain = [node]
    while len(chain[-1].children) == 1:
        chain.append(chain[-1].children[0])
    views, last = tuple(map(NodeView.of, chain)), chain[-1]
    if last.children and depth < 1:
        return Segment(nodes=views, hidden_leaves=len(last.leaves))
    return Segment(
        nodes=views, branches=tuple(_segment(child, depth - 1) for child in last.children)
    )


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
