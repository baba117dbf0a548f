"""Views of a tree: `tree.json`, trajectories, verdicts on task steps, questions as tool calls."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchflow_contracts import Answer, Ask, RolloutNode, RolloutTree, Trajectory, VerifyResult
from pydantic import TypeAdapter

from .credit import value_of

TREE_SCHEMA_VERSION: Final = "1.1"
"""1.1: a node has `state`, the digest and file of its state. 1.0 had the state itself."""

_ANY: TypeAdapter[Any] = TypeAdapter(Any, config={"ser_json_inf_nan": "constants"})
_plain = partial(_ANY.dump_python, mode="json")
_json = _ANY.dump_json


def tree_to_json(tree: RolloutTree) -> dict[str, Any]:
    """Return the tree as plain JSON data: nodes in order, parents first.

    Deterministic: equal trees give equal data, with keys in the same order.
    """
    data: dict[str, Any] = _plain({**_head(tree), "nodes": [_fields(n) for n in tree.nodes]})
    return data


def tree_to_bytes(tree: RolloutTree) -> bytes:
    """Return the contents of `tree.json`; folding a log twice gives the same bytes.

    It is `tree_to_json` with one node per line.
    """
    head = _json({**_head(tree), "nodes": []}).removesuffix(b"]}")
    return head + b"\n" + b",\n".join(_json(_fields(node)) for node in tree.nodes) + b"\n]}\n"


def node_to_json(node: RolloutNode) -> dict[str, Any]:
    """Return one node as in `tree_to_json`, and V of the node as `v`."""
    data: dict[str, Any] = _plain({**_fields(node), "v": value_of(node)})
    return data


def _head(tree: RolloutTree) -> dict[str, object]:
    return {
        "schema_version": TREE_SCHEMA_VERSION,
        "rollout_id": tree.rollout_id,
        "task_id": tree.task_id,
        "status": tree.status,
        "error": tree.error,
        "root": tree.root.id,
        "meta": tree.meta,
        "images": tree.images,
        "doors": tree.doors,
    }


def _fields(node: RolloutNode) -> dict[str, object]:
    return {
        "id": node.id,
        "parent": None if node.parent is None else node.parent.id,
        "label": node.label,
        "step": node.step,
        "branch": node.branch,
        "results": node.results,
        "value": node.value,
        "credit": node.credit,
        "error": node.error,
        "checkpoint_ref": node.checkpoint_ref,
        "state": node.state_ref,
        "took_sec": node.took_sec,
    }


def trajectory(tree: RolloutTree, leaf: RolloutNode) -> Trajectory:
    """Return the path from the root of `tree` to `leaf`, with the leaf's reward."""
    path = leaf.path
    return Trajectory(
        rollout_id=tree.rollout_id,
        task_id=tree.task_id,
        leaf=leaf.id,
        branch=tuple(node.label for node in path if node.label is not None),
        steps=tuple(node.step for node in path if node.step is not None),
        reward=leaf.reward,
    )


def trajectories(tree: RolloutTree) -> list[Trajectory]:
    """Return one trajectory for each leaf, in tree order, also for failed leaves."""
    return [trajectory(tree, leaf) for leaf in tree.leaves]


def verdict_name(step: str, reward: str = "reward") -> str:
    """Return the key of `reward`'s verdict on a step in the results of a node."""
    return f"{step}/{reward}"


def step_verdicts(leaf: RolloutNode) -> Mapping[str, tuple[RolloutNode, VerifyResult]]:
    """Return the verdict on each step that was graded on the path to `leaf`, and its node.

    The keys are the names of the steps, in order. A task of one prompt has none. If a step
    was graded again further down, the later verdict counts.
    """
    verdicts: dict[str, tuple[RolloutNode, VerifyResult]] = {}
    for node in leaf.path:
        verdicts |= {step: (node, result) for step, result in verdicts_at(node).items()}
    return verdicts


def verdicts_at(node: RolloutNode) -> Mapping[str, VerifyResult]:
    """Return the verdicts on the steps that ended at `node`, by the name of the step."""
    named = ((name.rpartition("/"), result) for name, result in node.results.items())
    return {step: result for (step, _, reward), result in named if step and reward == "reward"}


ASK_TOOL: Final = "ask_user"
"""The tool name of an Ask in an export."""


def ask_arguments(ask: Ask) -> dict[str, Any]:
    """Return the arguments of the `ask_user` call that represents `ask`."""
    questions = [
        {"question": q.text, "options": [option.label for option in q.options]}
        for q in ask.questions
    ]
    return {"questions": questions}


def answer_text(ask: Ask, answer: Answer) -> str:
    """Return the labels and the free text of `answer`, or another end of the Ask."""
    if answer.outcome != "answered":
        return answer.outcome
    parts: list[str] = []
    for question in ask.questions:
        labels = {option.id: option.label for option in question.options}
        parts += [labels.get(chosen, chosen) for chosen in answer.selected.get(question.id, ())]
        parts += [answer.text[question.id]] if question.id in answer.text else []
    return "\n".join(parts)
