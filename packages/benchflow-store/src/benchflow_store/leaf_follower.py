"""The scored leaves of a rollout, each as soon as it is final, also while the rollout runs."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchflow_contracts import FinishedRollout, NodeScored, RolloutNode, StoreError
from benchflow_kernel import EventsRead, TreeFold, read_events

from .progress import writer_of
from .stored_rollout import StoredRollout

_POLL_SEC: Final = 0.5


def follow_leaves(
    directory: Path, wait: Callable[[float], None] = time.sleep
) -> Iterator[tuple[FinishedRollout, RolloutNode]]:
    """Yield each scored leaf with the rollout so far, until the rollout has ended.

    A node that a policy may continue from is not final, and is left to the end of the export.

    Raises:
        StoreError: A file is damaged, or no process here writes the log of an unfinished rollout.
    """
    fold, read = TreeFold(), EventsRead((), 0, 0)
    while True:
        is_written = writer_of(directory) is not None
        earlier = len(read.events)
        read = read_events(directory / "events.jsonl", read)
        for event in read.events[earlier:]:
            fold.apply(event)
            if isinstance(event, NodeScored) and event.name == "reward":
                leaf = fold.tree.index[event.node]
                if leaf.reward is not None and is_final(leaf):
                    yield _rollout_so_far(directory, fold, read), leaf
        if read.events and fold.tree.status != "running":
            return
        if not is_written:
            raise StoreError(
                f"rollout {directory.name!r} was cut short, or runs on another host",
                hint="leave out --follow to export what is there",
            )
        wait(_POLL_SEC)


def is_final(leaf: RolloutNode) -> bool:
    """Return whether a node that was scored now stays a leaf: no policy continues from it."""
    forks = [node.branch for node in leaf.path if node.branch is not None and node.branch.children]
    return not leaf.children and all(fork.policy != "best-of" for fork in forks)


def _rollout_so_far(directory: Path, fold: TreeFold, read: EventsRead) -> FinishedRollout:
    stored = StoredRollout(directory)
    # The events are read already, and a log that grows would be read to another end.
    vars(stored).update(log=read, tree=fold.tree)
    return stored.read_finished()
