"""A finished rollout, read back from its directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts import ModelCall, RolloutNode, RolloutTree, StoreError, Task, UsageError
from benchflow_kernel import fold, read_events
from benchflow_store import is_ours, read_model_calls
from pydantic import ValidationError

from benchflow_engine.options import RunOptions
from benchflow_engine.task_formats import runnable_task


@dataclass(frozen=True, slots=True)
class PastRollout:
    """What a rollout was run with, and what came of it."""

    directory: Path
    tree: RolloutTree
    task: Task
    options: RunOptions

    @classmethod
    def read(cls, directory: Path, *, trust: bool = False) -> "PastRollout":
        """Read `directory`.

        Its options name code to import, variables of the host to send and where to, and the
        task whose verifier runs: without `trust`, they are taken from this user's own runs.

        Raises:
            StoreError: The record is not whole.
            TaskError: The task is gone, or no longer one.
            UsageError: The task was changed since, or the record is not this user's.
        """
        path = directory / "config.json"
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            options = RunOptions.model_validate(config["options"])
            where, digest = Path(config["task_path"]), str(config["task_digest"])
        except (OSError, ValueError, KeyError, ValidationError) as error:
            raise StoreError(
                f"cannot read the rollout's config: {error}",
                where=str(path),
                hint="only a rollout that `bench` has run has one",
            ) from error
        if not (trust or is_ours(config)):
            raise UsageError(
                f"{str(directory)!r} was not run by this user here, or was changed since",
                hint=f"what {str(path)!r} says would be run: read it, then give --trust",
            )
        task = runnable_task(where, options.adapter_options())
        if task.digest != digest:
            raise UsageError(
                f"task {task.id!r} is not the one that was run: it was changed since",
                hint="check out the task as it was, or run it anew",
            )
        return cls(directory, fold(read_events(directory / "events.jsonl").events), task, options)

    def node(self, name: str) -> RolloutNode:
        """Return a node of the tree.

        Raises:
            UsageError: There is none of that id.
        """
        try:
            return self.tree.index[name]
        except KeyError:
            known = ", ".join(list(self.tree.index)[:12])
            raise UsageError(f"no node {name!r}", hint=f"nodes: {known}") from None

    def leaf(self, name: str | None) -> RolloutNode:
        """Return the end of a trajectory, the first one's by default.

        Raises:
            UsageError: It is no leaf.
        """
        return leaf_of(self.tree, name)

    def calls_to(self, node: RolloutNode) -> tuple[ModelCall, ...]:
        """Return the recorded model calls on the path to `node`, in order."""
        recorded = read_model_calls(self.directory)
        named = [ident for step in node.steps for ident in step.model_calls]
        return tuple(recorded[ident] for ident in named if ident in recorded)


def leaf_of(tree: RolloutTree, name: str | None) -> RolloutNode:
    """Return the leaf `name`, or the first one.

    Raises:
        UsageError: It is no leaf.
    """
    ends = {node.id: node for node in tree.leaves}
    if name is not None and name not in ends:
        raise UsageError(f"{name!r} is no leaf", hint=f"leaves: {', '.join(ends)}")
    return tree.leaves[0] if name is None else ends[name]
