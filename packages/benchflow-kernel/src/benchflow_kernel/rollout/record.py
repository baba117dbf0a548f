"""The record of a rollout: its journal, its metadata and its tree."""

import itertools
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import (
    BenchFlowError,
    Cause,
    DoorPath,
    EnvState,
    NodeError,
    NodeFailed,
    Phase,
    PhaseEntered,
    RolloutNode,
    RolloutTree,
    SandboxMade,
    StateCaptured,
    StateUnavailable,
    Step,
    StepFinished,
    StoreError,
    Task,
)

from benchflow_kernel.config import RolloutConfig
from benchflow_kernel.events import EventLog, EventT
from benchflow_kernel.faults import node_error
from benchflow_kernel.resolve import Planes
from benchflow_kernel.states import StateWriter
from benchflow_kernel.tree import TreeFold, tree_to_bytes

_HIDDEN = "[redacted]"
_URLS = frozenset({"base_url", "upstream", "url"})
_SECRET_TABLES = frozenset({"headers", "env"})

_CREDENTIAL = re.compile(r"(?<=://)[^/@]*@|\?.*$")


class Journal:
    """Writes each event, and at once adds it to the tree. Creates the node ids.

    The tree of a running rollout thus equals the tree that a reader of the log builds.
    """

    def __init__(self, log: EventLog, directory: Path | None = None) -> None:
        self._log = log
        self._states = StateWriter(directory)
        self._fold = TreeFold()
        self._ids = itertools.count()

    @property
    def tree(self) -> RolloutTree:
        """The tree so far."""
        return self._fold.tree

    def new_id(self) -> str:
        """Return a node id that this rollout has not used."""
        return f"n{next(self._ids)}"

    def node(self, node_id: str) -> RolloutNode:
        """Return a node of the tree."""
        return self.tree.index[node_id]

    @property
    def tokens(self) -> int:
        """Input and output tokens of all steps so far, if they were counted."""
        used = (node.step.usage for node in self.tree.nodes if node.step is not None)
        return sum(u.input_tokens + u.output_tokens for u in used if u is not None)

    def append(self, kind: type[EventT], /, **fields: object) -> EventT:
        """Write one event and fold it.

        Raises:
            StoreError: The event could not be written.
        """
        event = self._log.append(kind, **fields)
        self._fold.apply(event)
        return event

    def enter_phase(self, node: str, phase: Phase) -> None:
        """Record that the world at `node` entered a phase."""
        self.append(PhaseEntered, node=node, phase=phase)

    def record_sandbox(
        self, node: str, images: Mapping[str, str], doors: Mapping[str, DoorPath]
    ) -> None:
        """Record the images of the sandbox of `node`, and how its doors lead out."""
        self.append(SandboxMade, node=node, images=images, doors=doors)

    def record_state(self, node: str, state: EnvState, *, is_graded: bool = False) -> None:
        """Write the environment's state at `node`, and record its digest.

        A graded state also stays in the tree, for the rewards; without a directory, every state. If
        the file cannot be written, the record says why, and the rollout continues.

        Raises:
            StoreError: A graded state cannot be encoded, or the event could not be written.
        """
        try:
            clean, text = self._log.encode(state)
        except StoreError as error:
            if is_graded:
                raise
            self.record_missing_state(node, str(error))
            return
        try:
            ref = self._states.write(text)
        except OSError as error:
            self.record_missing_state(node, f"the state cannot be written: {error.strerror}")
        else:
            self.append(StateCaptured, node=node, ref=ref)
        if is_graded or not self._states.has_directory:
            self.node(node).env_state = clean

    def record_missing_state(self, node: str, reason: str) -> None:
        """Record why a state that was due is missing."""
        self.append(StateUnavailable, node=node, reason=self.excerpt(reason))

    def excerpt(self, text: str) -> str:
        """Return the start of a text from an agent, without secrets."""
        return self._log.excerpt(text)

    def add_step(self, parent: str, node: str, step: Step, label: str | None) -> None:
        """Add an edge."""
        self.append(StepFinished, node=node, parent=parent, step=step, label=label)

    def record_failure(
        self, node: str, error: BenchFlowError | NodeError, cause: Cause | None = None
    ) -> None:
        """Record why the branch at `node` ended early."""
        record = node_error(error, cause) if isinstance(error, BenchFlowError) else error
        self.append(NodeFailed, node=node, error=record)

    def add_lost_child(
        self, node: str, parent: str, label: str | None, error: BenchFlowError, cause: Cause
    ) -> None:
        """Add a child that ended before its first step."""
        record = node_error(error, cause)
        self.append(NodeFailed, node=node, parent=parent, label=label, error=record)


def meta_of(task: Task, config: RolloutConfig, planes: Planes) -> dict[str, Any]:
    """Return the config, the task's digest, the grading mode, the provider and the versions.

    The log is shared, so it has no credentials: the values of headers and of environment
    variables are replaced, and each URL keeps only its host and path.
    """
    return {
        "config": _without_credentials(config.model_dump(mode="json")),
        "task_digest": task.digest,
        "grading": None if task.steps else config.isolation or task.grading,
        "provider": planes.provider.name,
        "versions": dict(_versions()),
    }


def log_dir_of(directory: Path | None, start_id: str, *, child: bool) -> Path | None:
    """Return the directory with `agent/` and `verifier/` of one world."""
    if directory is None or not child:
        return directory
    return directory / "branches" / start_id


def write_tree(tree: RolloutTree, directory: Path) -> None:
    """Write `tree.json` atomically.

    Raises:
        StoreError: The file cannot be written.
    """
    path, temporary = f"{directory}/tree.json", f"{directory}/.tree.json.part"
    try:
        with open(temporary, "wb") as stream:  # noqa: PTH123 - each rollout writes this file
            stream.write(tree_to_bytes(tree))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise StoreError(f"cannot write {path!r}: {error}") from error


def _without_credentials(table: dict[str, Any]) -> dict[str, Any]:
    """Remove the credentials from fresh JSON data, in place: this runs for each rollout."""
    for name, item in table.items():
        if isinstance(item, str):
            if name in _URLS:
                table[name] = _CREDENTIAL.sub("", item)
        elif isinstance(item, dict):
            items = cast("dict[str, Any]", item)
            hides = name in _SECRET_TABLES
            table[name] = dict.fromkeys(items, _HIDDEN) if hides else _without_credentials(items)
        elif isinstance(item, list):
            _clean_items(cast("list[object]", item))
    return table


def _clean_items(items: list[object]) -> None:
    for item in items:
        if isinstance(item, dict):
            _without_credentials(cast("dict[str, Any]", item))
        elif isinstance(item, list):
            _clean_items(cast("list[object]", item))


@cache
def _versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("benchflow-contracts", "benchflow-kernel"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions
