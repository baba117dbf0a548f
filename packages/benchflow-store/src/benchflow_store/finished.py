"""Finished rollouts, as they lie on disk."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import FinishedRollout, RolloutNode, RolloutTree, StoreError
from benchflow_kernel import fold, read_events
from pydantic import ValidationError

from .model_calls import read_model_calls
from .record import RanWith, RolloutRecord


def read_finished(directory: Path) -> FinishedRollout:
    """Return what the rollout in `directory` left. Its task need not be there any more.

    Raises:
        StoreError: A record of it is missing or damaged.
    """
    events = read_events(directory / "events.jsonl").events
    config = cast("Mapping[str, Any]", _json(directory / "config.json"))
    prompts = cast("list[str]", _json(directory / "prompts.json"))
    try:
        ran = RanWith(**config["ran"])
        return FinishedRollout(
            tree=fold(events),
            task_digest=str(config["task_digest"]),
            instruction=str(prompts[0]),
            agent=ran.agent,
            model=ran.model,
            sandbox=ran.sandbox,
            finished_at=events[-1].ts,
            task_path=Path(config["task_path"]),
            task_format=str(config.get("task_format", "benchflow")),
            events=events,
            calls=read_model_calls(directory),
            directory=directory,
        )
    except (ValidationError, LookupError, TypeError) as error:
        raise StoreError(f"damaged record: {error}", where=str(directory)) from error


def read_finished_rollouts(
    home: Path, records: Iterable[RolloutRecord]
) -> Iterator[FinishedRollout]:
    """Yield the rollouts of a job's directory, one at a time, also those that could not begin."""
    for record in records:
        directory = home / record.rollout_id
        if (directory / "events.jsonl").is_file():
            yield read_finished(directory)
        else:
            yield _never_begun(record, directory)


def _never_begun(record: RolloutRecord, directory: Path) -> FinishedRollout:
    root = RolloutNode(id="n0")
    tree = RolloutTree(
        rollout_id=record.rollout_id,
        task_id=record.task_id,
        root=root,
        index={root.id: root},
        status=record.status,
        error=record.error,
    )
    return FinishedRollout(
        tree=tree,
        task_digest=record.task_digest,
        instruction="",
        agent=record.agent,
        model=record.model,
        sandbox=record.sandbox,
        finished_at=record.finished_at,
        directory=directory,
    )


def _json(path: Path) -> object:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read a rollout's record: {error}", where=str(path)) from error
    return found
