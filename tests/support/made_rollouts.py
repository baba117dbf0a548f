"""Rollouts on disk without a run: the log and the record of a made tree."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchflow_contracts import (
    Branched,
    EnvState,
    Event,
    NodeCredited,
    NodeFailed,
    NodeScored,
    NodeValued,
    RolloutFinished,
    RolloutNode,
    RolloutRecord,
    RolloutStarted,
    RolloutTree,
    StateCaptured,
    StepFinished,
    TableState,
)
from benchflow_kernel import credit_of, value_of


def table(*rows: tuple[object, ...], columns: tuple[str, ...] = ("id", "title")) -> TableState:
    """Return a table with its first column as the key."""
    return TableState(
        columns=columns, key=columns[:1], rows=rows, row_count=len(rows), digest=repr(rows)
    )


def write_rollout(
    tree: RolloutTree,
    directory: Path,
    states: Mapping[str, EnvState] | None = None,
    *,
    started_at: float = 1.0,
    finished_at: float = 1_000.0,
) -> Path:
    """Write the log and the record of `tree`, and return the rollout's directory.

    Each event has the time `started_at`.
    """
    directory.mkdir(parents=True)
    events = list(_events(tree, states or {}, started_at))
    numbered = (event.model_copy(update={"seq": seq}) for seq, event in enumerate(events))
    text = "".join(event.model_dump_json() + "\n" for event in numbered)
    (directory / "events.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    if tree.status != "running":
        record = _record(tree, finished_at)
        (directory / "result.json").write_text(record.model_dump_json())
    return directory


def write_inputs(directory: Path, prompt: str = "Do it.") -> Path:
    """Write the inputs of the rollout in `directory`, which its exports need. Return it."""
    config = {
        "task_path": "/gone",
        "task_id": "made/task",
        "task_digest": "sha256:0",
        "task_format": "benchflow",
        "run": {},
        "ran": {"agent": "made", "model": None, "sandbox": "none"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "prompts.json").write_text(json.dumps([prompt]))
    return directory


def _record(tree: RolloutTree, finished_at: float) -> RolloutRecord:
    value = value_of(tree.root)
    return RolloutRecord(
        rollout_id=tree.rollout_id,
        task_id=tree.task_id,
        task_digest="sha256:0",
        agent="made",
        model=None,
        sandbox="none",
        status=tree.status,
        reward=None if value is None else value.mean,
        value=value,
        error=tree.error,
        finished_at=finished_at,
    )


def _events(
    tree: RolloutTree, states: Mapping[str, EnvState], started_at: float
) -> Iterator[Event]:
    at = {"seq": 0, "ts": started_at}
    yield RolloutStarted(
        **at, rollout_id=tree.rollout_id, task_id=tree.task_id, root=tree.root.id, meta={}
    )
    for node in tree.nodes:
        yield from _node_events(node, at)
        if node.id in states:
            yield StateCaptured(**at, node=node.id, state=states[node.id])
    for name, credit in credit_of(tree).items():
        yield NodeCredited(**at, node=name, credit=credit)
    value = value_of(tree.root)
    if value is not None:
        yield NodeValued(**at, node=tree.root.id, value=value)
    if tree.status != "running":
        yield RolloutFinished(**at, status=tree.status, error=tree.error)


def _node_events(node: RolloutNode, at: Mapping[str, float]) -> Iterator[Event]:
    parent = None if node.parent is None else node.parent.id
    if parent is not None and node.step is not None:
        yield StepFinished(**at, node=node.id, parent=parent, step=node.step, label=node.label)
    if node.error is not None:
        is_lost = node.step is None
        yield NodeFailed(
            **at,
            node=node.id,
            error=node.error,
            parent=parent if is_lost else None,
            label=node.label if is_lost else None,
        )
    if node.branch is not None:
        yield Branched(**at, node=node.id, record=node.branch)
    for name, result in node.results.items():
        yield NodeScored(**at, node=node.id, name=name, result=result)
