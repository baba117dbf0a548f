"""The difference between the states of two nodes, and the step that caused it."""

from benchflow_contracts import EnvState, Model, RolloutNode, UsageError
from benchflow_kernel import (
    DivergenceKind,
    EnvDiff,
    diff_states,
    first_divergence,
    value_of,
)
from pydantic import Field

from .node_states import missing_state
from .stored_rollout import StoredRollout
from .views import step_title

_NODES = 20
"""The maximum number of nodes in a hint."""


class ComparedNode(Model):
    """One side of a comparison."""

    rollout_id: str
    node: str
    value: float | None
    """V of the node: the mean return of its scored leaves."""
    diverges_at: str | None = None
    """The node after the first different step on the path to `node`."""
    step: str = ""
    """The label or the title of that step."""


class StepComparison(Model):
    """Where the paths to two nodes part."""

    a: ComparedNode
    b: ComparedNode
    divergence: DivergenceKind | None
    """How the first different steps differ; `None` if all steps of the two paths are equal."""
    shared_steps: int = Field(ge=0)
    """The number of equal steps before."""


class StateComparison(EnvDiff, StepComparison):
    """The changes from the state of `a` to the state of `b`, and where their paths part."""


def compare_states(first: StoredRollout, a: str, second: StoredRollout, b: str) -> StateComparison:
    """Compare the states of node `a` of one rollout and node `b` of the same or another one.

    An empty name is the first leaf with a recorded state.

    Raises:
        UsageError: A node is unknown, or does not have a recorded state.
        StoreError: The record of a state is missing or damaged.
    """
    left, before = _node_with_state(first, a)
    right, after = _node_with_state(second, b)
    steps = _compare_paths(first, left, second, right)
    diff = diff_states(before, after)
    return StateComparison(
        databases=diff.databases,
        files=diff.files,
        a=steps.a,
        b=steps.b,
        divergence=steps.divergence,
        shared_steps=steps.shared_steps,
    )


def compare_steps(first: StoredRollout, a: str, second: StoredRollout, b: str) -> StepComparison:
    """Find where the paths to two nodes part. The nodes need not have a recorded state.

    An empty name is the first leaf with a recorded state, else the first leaf.

    Raises:
        UsageError: A node is unknown.
    """
    return _compare_paths(first, _named(first, a), second, _named(second, b))


def _compare_paths(
    first: StoredRollout, left: RolloutNode, second: StoredRollout, right: RolloutNode
) -> StepComparison:
    parting = first_divergence(left, right)
    shared = len(left.steps) if parting is None else parting.shared_steps
    return StepComparison(
        a=_compared(first, left, None if parting is None else parting.a),
        b=_compared(second, right, None if parting is None else parting.b),
        divergence=None if parting is None else parting.kind,
        shared_steps=shared,
    )


def _compared(stored: StoredRollout, node: RolloutNode, parts_at: str | None) -> ComparedNode:
    value = value_of(node)
    return ComparedNode(
        rollout_id=stored.tree.rollout_id,
        node=node.id,
        value=None if value is None else value.mean,
        diverges_at=parts_at,
        step="" if parts_at is None else _title(stored.node(parts_at)),
    )


def _title(node: RolloutNode) -> str:
    if node.label is not None:
        return node.label
    return "" if node.step is None else step_title(node.step)


def _named(stored: StoredRollout, name: str) -> RolloutNode:
    leaves = (leaf for leaf in stored.tree.leaves if leaf.state_ref is not None)
    return stored.node(name) if name else next(leaves, stored.tree.leaves[0])


def _node_with_state(stored: StoredRollout, name: str) -> tuple[RolloutNode, EnvState]:
    known = [node.id for node in stored.tree.nodes if node.state_ref is not None]
    node = _named(stored, name)
    missing = missing_state(stored, node)
    if missing is not None:
        flag = f"run it again with {missing.flag}; " if missing.flag else ""
        raise UsageError(
            f"rollout {stored.tree.rollout_id!r} did not record a state of node {node.id!r}:"
            f" {missing.reason}",
            hint=f"{flag}nodes with a state: {', '.join(known[:_NODES]) or 'none'}",
        )
    state = stored.state(node)
    assert state is not None, "the node has a reference"
    return node, state
