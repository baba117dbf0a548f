"""The tree as `tree.json`."""

from functools import partial
from typing import Any, Final

from benchflow_contracts import RolloutNode, RolloutTree
from pydantic import TypeAdapter

TREE_SCHEMA_VERSION: Final = "1.0"

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
        "env_state": node.env_state,
        "took_sec": node.took_sec,
    }
