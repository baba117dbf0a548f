"""A rollout tree as a Verifiers v1 episode: one trace per leaf, or one for the whole graph.

Source of the format: verifiers 0.4.0, `Episode`, `Trace` and `ModelCall` (trace version 1).
In `tests/e2e/test_traces.py`, that package reads our traces.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from benchflow_contracts import FinishedRollout, RolloutNode
from benchflow_kernel import value_of

from .graph import GraphNode, MessageGraph, message_graph

Shape = Literal["leaves", "graph"]

_TRACE_VERSION = 1
_WRITER = "0.4.0"


def episode(rollout: FinishedRollout, shape: Shape = "leaves") -> dict[str, Any] | None:
    """Return one line of `traces.jsonl`, or `None` when no leaf has a score.

    `leaves`: one trace per scored leaf, with the leaf's return. The agent is called `leaf`, so
    a trainer's hierarchical baseline over the episode is the intra-tree one. Shared prefixes
    are repeated with the same tokens. `graph`: one trace with every message once, the root's V
    as its reward, and the leaves' returns in `info.benchflow`.

    `group.id` is the task's id and digest: the trees of one prompt are one group. A sampled
    token has the leaf's `intra` advantage in `leaves`, and the edge's `step` in `graph`.
    Unscored leaves are left out, with the nodes that lead only to them.
    """
    tree = rollout.tree
    leaves = [leaf for leaf in tree.leaves if leaf.reward is not None]
    if not leaves:
        return None
    graph = message_graph(tree.root, rollout.calls, instruction=rollout.instruction)
    if shape == "leaves":
        traces = [_leaf_trace(rollout, graph, leaf) for leaf in leaves]
    else:
        traces = [_graph_trace(rollout, graph, leaves)]
    return {
        "id": tree.rollout_id,
        "env": {"id": "benchflow"},
        "task": _task(rollout),
        "group": {"id": f"{tree.task_id}@{rollout.task_digest}"},
        "ok": True,
        "traces": traces,
    }


def _leaf_trace(rollout: FinishedRollout, graph: MessageGraph, leaf: RolloutNode) -> dict[str, Any]:
    intra = None if leaf.credit is None else leaf.credit.intra
    nodes = graph.along(leaf.path)
    info = {
        "leaf": leaf.id,
        "branch": [node.label for node in leaf.path if node.label is not None],
        "credit": None if leaf.credit is None else leaf.credit.model_dump(),
        "integrity": leaf.results["reward"].integrity,
        "shared_prefix": "per_leaf",
    }
    assert leaf.reward is not None
    advantages = {node.source: intra for node in nodes}
    return _trace(rollout, graph, nodes, advantages, leaf.id, leaf.reward, info)


def _graph_trace(
    rollout: FinishedRollout, graph: MessageGraph, leaves: Sequence[RolloutNode]
) -> dict[str, Any]:
    scored = {node.id for leaf in leaves for node in leaf.path}
    tree_nodes = [node for node in rollout.tree.nodes if node.id in scored]
    nodes = graph.along(tree_nodes)
    value = value_of(rollout.tree.root)
    assert value is not None
    info = {
        "leaves": {leaf.id: leaf.reward for leaf in leaves},
        "integrity": {leaf.id: leaf.results["reward"].integrity for leaf in leaves},
        "values": {node.id: node.value.model_dump() for node in tree_nodes if node.value},
        "parents": {node.id: node.parent.id for node in tree_nodes if node.parent},
        "shared_prefix": "once",
    }
    advantages = {node.id: node.credit.step for node in tree_nodes if node.credit is not None}
    return _trace(rollout, graph, nodes, advantages, "graph", value.mean, info)


def _trace(
    rollout: FinishedRollout,
    graph: MessageGraph,
    nodes: Sequence[GraphNode],
    advantages: Mapping[str, float | None],
    name: str,
    reward: float,
    info: Mapping[str, Any],
) -> dict[str, Any]:
    index = {id(node): at for at, node in enumerate(nodes)}
    exact = any(node.logprobs for node in nodes)
    return {
        "version": _TRACE_VERSION,
        "id": f"{rollout.tree.rollout_id}-{name}",
        "verifiers": {"version": _WRITER},
        "task": _task(rollout),
        "agent": {
            "config": {"harness": {"id": rollout.agent}, "model": rollout.model},
            "name": "graph" if name == "graph" else "leaf",
            "trainable": exact,
        },
        "nodes": [_node(node, index, advantages.get(node.source)) for node in nodes],
        "calls": list(_calls(graph, index)),
        "rewards": {"reward": {"score": reward, "weight": 1.0}},
        "info": {
            "benchflow": {
                **info,
                "rollout_id": rollout.tree.rollout_id,
                "sources": [node.source for node in nodes],
                "retokenised": graph.retokenised,
            }
        },
        "is_completed": True,
        "ok": True,
    }


def _node(node: GraphNode, index: Mapping[int, int], advantage: float | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "parent": None if node.parent is None else index[id(node.parent)],
        "message": node.message,
        "sampled": node.sampled,
        "timestamp": node.timestamp,
        "token_ids": list(node.tokens),
        "mask": node.mask,
        "logprobs": list(node.logprobs),
    }
    if node.logprobs and advantage is not None:
        fields["advantages"] = [advantage] * len(node.logprobs)
    return fields


def _calls(graph: MessageGraph, index: Mapping[int, int]) -> Iterable[dict[str, Any]]:
    for node, call in graph.calls:
        at = index.get(id(node))
        if at is not None:
            cached = call.usage.cached_tokens
            yield {
                "node": at,
                "model": call.model,
                "endpoint": "/chat/completions",
                "usage": {
                    "prompt_tokens": call.usage.input_tokens - cached,
                    "completion_tokens": call.usage.output_tokens,
                    "cached_input_tokens": cached,
                },
                "time": {"start": call.started_at, "end": call.finished_at},
            }


def _task(rollout: FinishedRollout) -> dict[str, Any]:
    return {
        "type": "BenchFlowTask",
        "data": {"id": rollout.tree.task_id, "prompt": rollout.instruction},
        "key": rollout.tree.task_id,
        "hash": rollout.task_digest,
    }
