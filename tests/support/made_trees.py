"""Rollout trees without a rollout: of any shape and size, for tests of pages."""

import random
from collections.abc import Callable, Iterable

from benchflow_contracts import (
    Ask,
    AskOption,
    BranchRecord,
    NodeError,
    Observation,
    Question,
    RolloutNode,
    RolloutTree,
    Step,
    ToolCall,
    VerifyResult,
)

Namer = Callable[[int], str]


def plain_step(number: int, title: str = "") -> Step:
    """Return a step with one tool call."""
    call = ToolCall(id=f"call-{number}", title=title or f"run {number}")
    seen = Observation(tool_call_id=call.id, status="completed", content=f"result {number}")
    return Step(
        id=f"s{number}",
        tool_calls=(call,),
        observations=(seen,),
        started_at=number,
        finished_at=number + 1.5,
    )


def asking_step(text: str, options: Iterable[str]) -> Step:
    """Return a step that ends in a question."""
    listed = tuple(AskOption(id=f"o{at}", label=label) for at, label in enumerate(options))
    question = Question(id="q", text=text, options=listed)
    ask = Ask(id="ask-1", channel="elicitation", kind="question", questions=(question,))
    return Step(id="asking", ask=ask, started_at=0, finished_at=1)


def tree_of_climbs(climbs: Iterable[int]) -> RolloutTree:
    """Return a scored tree. Before each node after the root, the path is climbed by so many."""
    root = RolloutNode(id="n0")
    index, path = {root.id: root}, [root]
    for number, climb in enumerate(climbs, 1):
        del path[max(len(path) - climb, 1) :]
        parent = path[-1]
        node = RolloutNode(id=f"n{number}", parent=parent, step=plain_step(number))
        parent.children.append(node)
        index[node.id] = node
        path.append(node)
    for number, node in enumerate(index.values()):
        if not node.children:
            node.results["reward"] = VerifyResult(reward=(number % 5) / 4)
        elif len(node.children) > 1:
            node.branch = BranchRecord(
                policy="group", fidelity="state", reason="not live", children=len(node.children)
            )
    return RolloutTree(
        rollout_id="made__01", task_id="made/task", root=root, index=index, status="completed"
    )


def random_tree(nodes: int, *, seed: int = 0) -> RolloutTree:
    """Return a tree with forks at every depth; about every fourth node is a leaf."""
    rng = random.Random(seed)
    climbs = [rng.choice((0, 0, 0, rng.randrange(1, 12))) for _ in range(nodes - 1)]
    return tree_of_climbs(climbs)


def tree_of_all_kinds(text: str = "plain", name: Namer = "n{}".format) -> RolloutTree:
    """Return a tree with each kind of node, and with `text` wherever an agent may write text.

    n0 start, n1 question, its children n2 (option), n3 (lost), n4 (failed); n5 below n2 is a leaf.
    """
    root = RolloutNode(id=name(0))
    ask = asking_step(text, [f"{text} a", f"{text} b"])
    seen = Observation(tool_call_id="c", status="failed", content=text, raw_output={text: text})
    call = ToolCall(id="c", title=text, kind=text, name=text, raw_input={text: [text]})
    asking = ask.model_copy(
        update={
            "prompt": text,
            "reasoning": text,
            "message": text,
            "tool_calls": (call,),
            "observations": (seen,),
            "role": text,
            "skills": (text,),
        }
    )
    record = BranchRecord(policy=text, fidelity="replay", reason=text, children=3)
    question = RolloutNode(id=name(1), parent=root, step=asking, branch=record)
    error = NodeError(boundary=text, type=text, message=text, hint=text)
    chosen = RolloutNode(id=name(2), parent=question, step=plain_step(2, text), label=text)
    lost = RolloutNode(id=name(3), parent=question, label=text, error=error)
    failed = RolloutNode(id=name(4), parent=question, step=plain_step(4, text), error=error)
    leaf = RolloutNode(id=name(5), parent=chosen, step=plain_step(5, text))
    leaf.results["reward"] = VerifyResult(reward=0.5, items={text: 1.0}, meta={text: text})
    leaf.results[f"{text}/reward"] = VerifyResult.unscored(text, error_type=text)
    root.children, question.children = [question], [chosen, lost, failed]
    chosen.children = [leaf]
    nodes = (root, question, chosen, lost, failed, leaf)
    return RolloutTree(
        rollout_id="made__02",
        task_id=text,
        root=root,
        index={node.id: node for node in nodes},
        status="completed",
        error=error,
    )
