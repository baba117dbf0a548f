"""The one reader of a rollout's directory: finished, still running or cut short."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, cast

from benchflow_contracts import (
    EnvState,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutRecord,
    RolloutTree,
    StoreError,
    UsageError,
)
from benchflow_kernel import EventsRead, fold, read_events, read_state
from pydantic import ValidationError

from .group_rewards import apply_groups, read_groups
from .record import RanWith
from .sealed_config import has_own_seal

MODEL_DIR: Final = "model"
JUDGE_DIR: Final = "judge"
_JOB_FILES: Final = ("job.json", "summary.json")
"""A directory with one of them is a job's."""
"""Below a rollout's directory: one file of recorded calls per node."""
_SHOWN_NODES = 12
"""The maximum number of node ids in an error."""


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """`config.json`: the inputs of a rollout."""

    path: Path
    task_path: Path
    """The task's path at the time of the run. The task may have changed or been deleted since."""
    task_id: str
    task_digest: str
    task_format: str
    ran: RanWith
    run: Mapping[str, Any]
    """The configuration of the run, without secrets. The engine validates it."""
    override: Mapping[str, Any]
    """The values that a job laid over the task."""
    is_own: bool
    """Whether a run of this user wrote the file, without a later change."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file at `path`.

        Raises:
            StoreError: The file is missing or damaged.
        """
        data = cast("Mapping[str, Any]", _read_json(path))
        try:
            return cls(
                path=path,
                task_path=Path(data["task_path"]),
                task_id=str(data["task_id"]),
                task_digest=str(data["task_digest"]),
                task_format=str(data["task_format"]),
                ran=RanWith(**data["ran"]),
                run=dict(data["run"]),
                override=dict(data.get("task_override") or {}),
                is_own=has_own_seal(data),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise StoreError(f"damaged record: {error!r}", where=str(path)) from error


@dataclass(frozen=True)
class StoredRollout:
    """A rollout's directory. Each file is read on first use, and then once."""

    directory: Path

    def with_new_events(self) -> Self:
        """Return the rollout as its files are now. The events that were read are not read again.

        The log must be the same file as before, to which lines were only added.

        Raises:
            StoreError: The log is missing or damaged.
        """
        fresh = replace(self)
        # The cache of the property: the class is frozen.
        vars(fresh)["log"] = read_events(self.directory / "events.jsonl", self.log)
        return fresh

    @property
    def has_begun(self) -> bool:
        """Whether the rollout has an event log. A refused rollout has only a record."""
        return (self.directory / "events.jsonl").is_file()

    @property
    def has_events(self) -> bool:
        """Whether the event log has an event. A kill at the start leaves an empty log.

        Raises:
            StoreError: The log is damaged.
        """
        return self.has_begun and bool(self.log.events)

    @cached_property
    def log(self) -> EventsRead:
        """The events, and the length of an unfinished last line.

        Raises:
            StoreError: The log is missing or damaged.
        """
        return read_events(self.directory / "events.jsonl")

    @cached_property
    def tree(self) -> RolloutTree:
        """The tree, folded from the events."""
        return fold(self.log.events)

    @cached_property
    def config(self) -> StoredConfig:
        """The inputs of the rollout.

        Raises:
            StoreError: `config.json` is missing or damaged.
        """
        return StoredConfig.read(self.directory / "config.json")

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """The instruction of the task, then the prompts that follow it.

        Raises:
            StoreError: `prompts.json` is missing or damaged.
        """
        path = self.directory / "prompts.json"
        prompts = _read_json(path)
        if not isinstance(prompts, list) or not prompts:
            raise StoreError("damaged record: not a list of prompts", where=str(path))
        return tuple(map(str, cast("list[object]", prompts)))

    @cached_property
    def record(self) -> RolloutRecord | None:
        """The summary in `result.json`; `None` while the rollout has not ended.

        Raises:
            StoreError: `result.json` is damaged or cannot be read.
        """
        path = self.directory / "result.json"
        return read_record(path) if path.exists() else None

    @cached_property
    def calls(self) -> Mapping[str, ModelCall]:
        """The recorded model calls by id; empty without a gateway.

        Raises:
            StoreError: A recorded call is damaged.
        """
        return read_model_calls(self.directory)

    def calls_to(self, node: RolloutNode) -> tuple[ModelCall, ...]:
        """Return the recorded model calls on the path to `node`, in order."""
        ids = [call for step in node.steps for call in step.model_calls]
        return tuple(self.calls[call] for call in ids if call in self.calls)

    def state(self, node: RolloutNode) -> EnvState | None:
        """Return the environment's state at `node`, read at this call; None if it has none.

        `missing_state` says why a node has none.

        Raises:
            StoreError: The file of the state is missing, changed, or cannot be read.
        """
        if node.env_state is not None or node.state_ref is None:
            return node.env_state
        return read_state(self.directory, node.state_ref)

    def node(self, name: str) -> RolloutNode:
        """Return a node of the tree.

        Raises:
            UsageError: The tree has no node with that id.
        """
        try:
            return self.tree.index[name]
        except KeyError:
            known = ", ".join(list(self.tree.index)[:_SHOWN_NODES])
            raise UsageError(f"the tree has no node {name!r}", hint=f"nodes: {known}") from None

    def leaf(self, name: str | None = None) -> RolloutNode:
        """Return the leaf `name`, or the first leaf.

        Raises:
            UsageError: `name` is not a leaf.
        """
        leaves = {node.id: node for node in self.tree.leaves}
        if name is not None and name not in leaves:
            raise UsageError(f"{name!r} is not a leaf", hint=f"leaves: {', '.join(leaves)}")
        return self.tree.leaves[0] if name is None else leaves[name]

    def read_finished(self) -> FinishedRollout:
        """Return the rollout as exporters read it. The task's directory is not needed.

        Raises:
            StoreError: A file of the rollout is missing or damaged.
        """
        events, config = self.log.events, self.config
        if not events:
            raise StoreError("damaged record: the event log is empty", where=str(self.directory))
        learner = None if self.record is None else self.record.learner
        return FinishedRollout(
            tree=self.tree,
            task_digest=config.task_digest,
            instruction=self.prompts[0],
            agent=config.ran.agent,
            model=config.ran.model,
            sandbox=config.ran.sandbox,
            finished_at=events[-1].ts,
            task_path=config.task_path,
            task_format=config.task_format,
            events=events,
            calls=self.calls,
            directory=self.directory,
            job=self._job,
            store_generation=None if learner is None else learner.before.generation,
        )

    @property
    def _job(self) -> str | None:
        parent = self.directory.resolve().parent
        return parent.name if any((parent / name).is_file() for name in _JOB_FILES) else None


def read_record(path: Path) -> RolloutRecord:
    """Return the record in the file at `path`, a `result.json`.

    Raises:
        StoreError: The file is damaged or cannot be read.
    """
    try:
        return RolloutRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValidationError as error:
        raise StoreError(f"damaged record: {error.errors()[0]['msg']}", where=str(path)) from error


def read_records(job: Path) -> Iterator[RolloutRecord]:
    """Yield the record of every rollout of a job's directory, by the name of the rollout.

    A slot that was run again has several records. A rollout that has not ended has none.

    Raises:
        StoreError: A record is damaged or cannot be read.
    """
    try:
        paths = sorted(job.glob("*/result.json"))
    except OSError as error:
        raise StoreError(f"cannot read {str(job)!r}: {error.strerror}") from error
    for path in paths:
        yield read_record(path)


def latest_records(job: Path) -> dict[str, RolloutRecord]:
    """Return the record of every slot that counts; a rollout without a record has none.

    A graded attempt counts, because it is not repeated. Of the others the last attempt counts. The
    wall clock does not decide: it may have been set back.

    Raises:
        StoreError: A record is damaged or cannot be read.
    """
    latest: dict[str, RolloutRecord] = {}
    for record in read_records(job):
        earlier = latest.get(record.slot or record.rollout_id)
        if earlier is None or _order(earlier) < _order(record):
            latest[record.slot or record.rollout_id] = record
    return latest


def _order(record: RolloutRecord) -> tuple[bool, int, float]:
    # Only records of version 0.8.0 and before have no attempt.
    return record.is_final, record.attempt or 0, record.finished_at


def read_finished_rollouts(
    job: Path, records: Iterable[RolloutRecord]
) -> Iterator[FinishedRollout]:
    """Yield the rollouts of a job's directory one at a time, in the order of `records`.

    A rollout that could not begin has a tree with only a root, and the root's error. The verdicts
    of group rewards are in the trees.

    Raises:
        StoreError: A file of a rollout is missing or damaged.
    """
    groups = read_groups(job)
    for record in records:
        stored = StoredRollout(job / record.rollout_id)
        begun = stored.has_begun
        rollout = stored.read_finished() if begun else _only_root(record, stored.directory)
        apply_groups(rollout.tree, groups)
        yield replace(rollout, job=job.resolve().name)


def _only_root(record: RolloutRecord, directory: Path) -> FinishedRollout:
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


def _read_json(path: Path) -> object:
    try:
        return cast("object", json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read the rollout's record: {error}", where=str(path)) from error


def read_model_calls(directory: Path) -> dict[str, ModelCall]:
    """Return the calls of the rollout in `directory` by id; empty without a gateway.

    Raises:
        StoreError: A recorded call is damaged or cannot be read.
    """
    files = sorted((directory / MODEL_DIR).rglob("*.jsonl"))
    if not files:
        return {}
    from benchflow_gateway import read_calls  # noqa: PLC0415 - only after calls of a model

    return {call.id: call for path in files for call in read_calls(path)}
