"""Finished rollouts for tests of exporters, made without a run."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchflow_contracts.ask import Answer, Ask, AskOption, Question
from benchflow_contracts.exporter import FinishedRollout
from benchflow_contracts.step import Observation, Step, ToolCall, Usage
from benchflow_contracts.tree import NodeError, RolloutNode, RolloutTree
from benchflow_contracts.verdict import VerifyResult

_OPTIONS = ("red", "green", "blue")
_ASK = Ask(
    id="1",
    channel="elicitation",
    kind="question",
    questions=(
        Question(
            id="q", text="Which one?", options=tuple(AskOption(id=o, label=o) for o in _OPTIONS)
        ),
    ),
)
_DEEP = 150
"""The levels of a tool's input. A reader of events accepts them, but many writers do not."""


def fake_finished_rollout(rollout_id: str = "paint__0001") -> FinishedRollout:
    """Return a rollout with a fork into three branches at a question.

    The leaves `n3`, `n4` and `n5` are unscored, 1 and 0.5. So the first leaf is the leaf
    without a score.
    """
    looked = Step(
        id="s1",
        prompt="Paint the fence.",
        reasoning="What is there?",
        message="I look.",
        tool_calls=(ToolCall(id="t1", title="ls", kind="execute", raw_input={"command": "ls"}),),
        observations=(Observation(tool_call_id="t1", status="completed", content="fence\n"),),
        usage=Usage(input_tokens=10, output_tokens=4, cached_tokens=2),
        started_at=100.0,
        finished_at=101.0,
    )
    asked = Step(id="s2", message="Say.", ask=_ASK, started_at=101.0, finished_at=102.0)
    tree = _tree(rollout_id, [looked, asked])
    fork = tree.index["n2"]
    for at, option in enumerate(_OPTIONS):
        step = Step(
            id=f"s{at + 3}",
            answer=Answer.choose(_ASK, option),
            message=f"It is {option}.",
            stop_reason="end_turn",
            started_at=103.0 + at,
            finished_at=104.0 + at,
        )
        _grow(tree, fork, step, label=option)
    lost, good, fair = tree.leaves
    lost.error = NodeError(
        boundary="agent", type="AgentTimeoutError", message="no end", hint="give it more time"
    )
    good.results["reward"] = VerifyResult(reward=1.0, items={"even": 1.0}, grading="hermetic")
    fair.results["reward"] = VerifyResult(reward=0.5, items={"even": 0.0}, grading="hermetic")
    return _finished(tree)


def fake_growing_rollout(
    finished: FinishedRollout,
) -> Iterator[tuple[FinishedRollout, RolloutNode]]:
    """Yield each scored leaf of a rollout, with the rollout as it was when the leaf was scored.

    The leaves after it are there and have no verdict, and no node has a value or a credit.
    """
    for number, end in enumerate(finished.tree.leaves):
        if end.reward is None:
            continue
        tree = copy.deepcopy(finished.tree)
        tree.status = "running"
        for node in tree.nodes:
            node.value = node.credit = None
        for later in tree.leaves[number + 1 :]:
            later.results.clear()
        yield replace(finished, tree=tree), tree.index[end.id]


def fake_hostile_rollout(rollout_id: str = "paint__0002") -> FinishedRollout:
    """Return a scored rollout of one step, with text of an agent that breaks naive writers."""
    nasty = "\x1b]0;title\x07\x1b[2J \x00 \ud800 \u202e <script>alert(1)</script> \x9b"
    deep: dict[str, Any] = {"end": 10**30}
    for _ in range(_DEEP):
        deep = {"in": deep}
    call = ToolCall(
        id=nasty,
        title=nasty,
        name=nasty,
        raw_input={nasty: [float("nan"), float("inf"), deep]},
    )
    step = Step(
        id="s1",
        prompt=nasty,
        reasoning=nasty,
        message=nasty,
        tool_calls=(call, call, ToolCall(id="text", title="", raw_input=[nasty])),
        observations=(
            Observation(tool_call_id=nasty, status="completed", content=nasty),
            Observation(tool_call_id="nobody's", status="failed", content="x" * 3_000_000),
        ),
        stop_reason="end_turn",
        started_at=100.0,
        finished_at=101.0,
    )
    tree = _tree(rollout_id, [step])
    tree.leaves[0].results["reward"] = VerifyResult(reward=0.0, meta={nasty: nasty})
    return _finished(tree)


def _tree(rollout_id: str, steps: list[Step]) -> RolloutTree:
    root = RolloutNode(id="n0")
    index = {root.id: root}
    tree = RolloutTree(
        rollout_id=rollout_id, task_id="fakes/paint", root=root, index=index, status="completed"
    )
    at = root
    for step in steps:
        at = _grow(tree, at, step)
    return tree


def _grow(
    tree: RolloutTree, parent: RolloutNode, step: Step, *, label: str | None = None
) -> RolloutNode:
    node = RolloutNode(id=f"n{len(tree.index)}", parent=parent, step=step, label=label)
    parent.children.append(node)
    assert isinstance(tree.index, dict)
    tree.index[node.id] = node
    return node


def _finished(tree: RolloutTree) -> FinishedRollout:
    return FinishedRollout(
        tree=tree,
        task_digest=f"sha256:{'0' * 64}",
        instruction="Paint the fence.",
        agent="fake",
        model="provider/model",
        sandbox="fake",
        finished_at=110.0,
    )
