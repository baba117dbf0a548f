"""Write a rollout that BenchFlow did not run, so that every reader of rollouts reads it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    FinishedRollout,
    NodeFailed,
    NodeScored,
    RolloutFinished,
    RolloutNode,
    RolloutRecord,
    RolloutStarted,
    RolloutTree,
    Step,
    StepFinished,
    Task,
    TaskConfig,
)
from benchflow_kernel import EventLog, write_tree

from .files import write_inputs, write_result, write_rollout
from .record import RanWith, record_from_tree
from .stored_rollout import StoredRollout

IMPORTED_AGENT: Final = "imported"
"""The agent in the configuration of an imported rollout. It cannot run."""


def write_imported(
    directory: Path, rollout: FinishedRollout, task: Task | None = None
) -> RolloutRecord:
    """Write the files of an imported rollout into a new directory, and return its record.

    The event log has the steps and the verdicts of the tree, with their times. The record of model
    calls and the rows for trainers are missing. `task` is the task that the verdicts are of.

    Raises:
        StoreError: The directory has a rollout, or a file cannot be written.
    """
    source = rollout.tree
    task = task or Task(
        id=source.task_id,
        path=Path(),
        instruction=rollout.instruction,
        config=TaskConfig(name=source.task_id),
        digest=rollout.task_digest,
        format=rollout.task_format,
    )
    ran = RanWith(agent=rollout.agent, model=rollout.model, sandbox=rollout.sandbox)
    write_inputs(directory, task, ran, {"agent": {"name": IMPORTED_AGENT}})
    _write_log(directory / "events.jsonl", rollout)
    stored = StoredRollout(directory)
    tree = stored.tree
    write_tree(tree, directory)
    write_rollout(directory, tree, stored.log.events)
    record = record_from_tree(tree, task, ran)
    record = record.model_copy(update={"finished_at": rollout.finished_at})
    write_result(directory, record)
    return record


def _write_log(path: Path, rollout: FinishedRollout) -> None:
    tree = rollout.tree
    now = min((step.started_at for step in _steps(tree)), default=rollout.finished_at)
    with EventLog(path, clock=lambda: now) as log:
        log.append(
            RolloutStarted,
            rollout_id=tree.rollout_id,
            task_id=tree.task_id,
            root=tree.root.id,
            meta={**tree.meta, "imported_from": rollout.imported_from or "unknown"},
        )
        for node in tree.root.subtree:
            if node.step is not None and node.parent is not None:
                now = max(now, node.step.finished_at)
                fields = {"node": node.id, "parent": node.parent.id, "label": node.label}
                log.append(StepFinished, step=node.step, **fields)
        now = max(now, rollout.finished_at)
        for node in tree.root.subtree:
            _write_results(log, node)
        status = tree.status if tree.status != "running" else "ungraded"
        log.append(RolloutFinished, status=status, error=tree.error)


def _write_results(log: EventLog, node: RolloutNode) -> None:
    for name, result in node.results.items():
        log.append(NodeScored, node=node.id, name=name, result=result)
    if node.error is not None:
        log.append(NodeFailed, node=node.id, error=node.error)


def _steps(tree: RolloutTree) -> Iterator[Step]:
    return (node.step for node in tree.nodes if node.step is not None)
