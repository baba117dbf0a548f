"""The tree as `tree.json`."""

import json
from typing import Any, Final

from benchflow_contracts import Model, RolloutNode, RolloutTree

TREE_SCHEMA_VERSION: Final = "1.0"

# Without an indent, since only then the encoder is the one written in C.
_text = json.JSONEncoder(ensure_ascii=False).encode


def tree_to_json(tree: RolloutTree) -> dict[str, Any]:
    """Return the tree as plain JSON data: nodes in order, parents first.

    Deterministic: equal trees give equal data, with keys in the same order.
    """
    return {
        "schema_version": TREE_SCHEMA_VERSION,
        "rollout_id": tree.rollout_id,
        "task_id": tree.task_id,
        "status": tree.status,
        "error": _dump(tree.error),
        "root": tree.root.id,
        "meta": dict(tree.meta),
        "nodes": [_node(node) for node in tree.nodes],
    }


def tree_to_bytes(tree: RolloutTree) -> bytes:
    """Return the contents of `tree.json`; folding a log twice gives the same bytes.

    It is `tree_to_json` with one node per line.
    """
    data = tree_to_json(tree)
    nodes = ",\n".join(_text(node) for node in data.pop("nodes"))
    head = _text(data).removesuffix("}")
    return f'{head}, "nodes": [\n{nodes}\n]}}\n'.encode()


def _node(node: RolloutNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "parent": None if node.parent is None else node.parent.id,
        "label": node.label,
        "step": _dump(node.step),
        "branch": _dump(node.branch),
        "results": {name: _dump(result) for name, result in node.results.items()},
        "value": _dump(node.value),
        "error": _dump(node.error),
        "checkpoint_ref": node.checkpoint_ref,
        "env_state": _dump(node.env_state),
    }


def _dump(model: Model | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json")
