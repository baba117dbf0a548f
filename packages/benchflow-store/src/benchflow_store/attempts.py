"""How the attempts at one rollout follow each other: their files and their model calls."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import BeganFrom, ModelCall
from benchflow_kernel import CheckpointManifest

from .files import write_text
from .stored_rollout import MODEL_DIR, StoredRollout

_SUCCESSOR: Final = "resumed.json"


def name_successor(directory: Path, successor: Path) -> None:
    """Note in `directory` that the attempt in `successor` resumes its rollout.

    Raises:
        StoreError: The file cannot be written.
    """
    names = {"rollout": successor.name, "directory": str(successor.resolve())}
    write_text(directory / _SUCCESSOR, json.dumps(names) + "\n")


def later_attempts(directory: Path) -> list[Path]:
    """Return the attempts that resumed the rollout in `directory`, in their order.

    An attempt that never began does not count.
    """
    found: list[Path] = []
    successor = _successor(directory)
    while successor is not None and successor not in (directory, *found):
        if not StoredRollout(successor).has_begun:
            break
        found.append(successor)
        successor = _successor(successor)
    return found


def last_attempt(directory: Path) -> Path:
    """Return the last attempt that resumed the rollout in `directory`, or `directory` itself."""
    return [directory, *later_attempts(directory)][-1]


def earlier_attempt(directory: Path, began: BeganFrom) -> Path | None:
    """Return the directory of the attempt that the attempt in `directory` resumed.

    A job may have been moved, so the directory beside this one comes first.
    """
    if began.rollout is None or began.directory is None:
        return None
    beside = directory.parent / Path(began.rollout).name
    return beside if beside.is_dir() else Path(began.directory)


def _successor(directory: Path) -> Path | None:
    try:
        names: Any = json.loads((directory / _SUCCESSOR).read_bytes())
        beside = directory.parent / Path(str(names["rollout"])).name
        return beside if beside.is_dir() else Path(str(names["directory"]))
    except (OSError, ValueError, TypeError, LookupError):
        return None  # It was not resumed, or was killed while it wrote this file.


def prior_calls(
    manifest: CheckpointManifest, calls: Mapping[str, ModelCall]
) -> tuple[ModelCall, ...]:
    """Return the recorded calls of `calls` up to a checkpoint, in the order of their ids."""
    steps = (saved.step for saved in manifest.history if saved.step is not None)
    last: dict[str, tuple[int, str]] = {}
    for call in (calls[i] for step in steps for i in step.model_calls if i in calls):
        last[call.node] = max(last.get(call.node, (0, "")), _place(call))
    chosen = (c for c in calls.values() if c.node in last and _place(c) <= last[c.node])
    return tuple(sorted(chosen, key=_place))


def _place(call: ModelCall) -> tuple[int, str]:
    return len(call.id), call.id


def write_prior_calls(directory: Path, calls: Iterable[ModelCall]) -> None:
    """Write the calls of an earlier attempt as the start of the record of each node.

    The gateway numbers the later calls of the node after them.

    Raises:
        StoreError: A file cannot be written.
    """
    by_node: dict[str, list[str]] = {}
    for call in calls:
        by_node.setdefault(call.node, []).append(call.model_dump_json() + "\n")
    home = directory / MODEL_DIR / directory.name
    for node, lines in by_node.items():
        write_text(home / f"{node}.jsonl", "".join(lines), mode=0o600)
