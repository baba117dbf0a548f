"""Branches from a node of a stored rollout: the checkpoint, its fidelity, and the command."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from benchflow_contracts import BenchFlowError, RolloutNode, RolloutTree, UsageError
from benchflow_kernel import CheckpointManifest
from benchflow_store import checkpoint_paths, read_trusted_manifest

from benchflow_dashboard.index import RolloutEntry
from benchflow_dashboard.tree.facts import TreeFacts

BranchAction = Literal["branch", "restore-best"]
BRANCH_ACTIONS: Final[tuple[BranchAction, ...]] = get_args(BranchAction)
BRANCH_TITLES: Final[Mapping[BranchAction, str]] = {
    "branch": "Branch here",
    "restore-best": "Restore the best child",
}
_MOST: Final = 64
"""The maximum number of continuations of one action."""
_NUMBER: Final = re.compile("[1-9][0-9]?")
_KEEP_HINT: Final = "run with --keep forks (forks) or --keep all (also turns and questions)"


class NoCheckpointError(UsageError):
    """No checkpoint from which the rollout could continue was saved at the node."""


class RolloutStateError(UsageError):
    """The state of the rollout does not allow a branch."""


@dataclass(frozen=True, slots=True)
class BranchOffer:
    """A saved checkpoint from which a rollout can continue."""

    node: str
    """The node of the checkpoint."""
    checkpoint: str
    """The name of the checkpoint below `checkpoints/`."""
    fidelity: str
    why: str
    """Why no better fidelity is possible; empty for `live`."""
    effect: str


@dataclass(frozen=True, slots=True)
class NodeAction:
    """An action at a node: an offer, or the reason that it is not possible."""

    action: BranchAction
    title: str
    offer: BranchOffer | None
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class BranchSource:
    """A rollout with the checkpoints that it saved."""

    entry: RolloutEntry
    tree: RolloutTree
    facts: TreeFacts
    saved: Mapping[str, Path]
    """The newest checkpoint of each node."""

    @classmethod
    def of(cls, entry: RolloutEntry, tree: RolloutTree, facts: TreeFacts) -> "BranchSource":
        """List the checkpoints of a rollout. None is read.

        Raises:
            StoreError: The directory of the checkpoints cannot be read.
        """
        return cls(entry, tree, facts, _newest_by_node(entry.directory))


def node_actions(source: BranchSource, node: RolloutNode) -> list[NodeAction]:
    """Return the actions at a node. `restore-best` is only one of a fork."""
    found: list[NodeAction] = []
    for name in BRANCH_ACTIONS:
        if name == "restore-best" and len(node.children) < 2:
            continue
        try:
            found.append(NodeAction(name, BRANCH_TITLES[name], find_offer(name, source, node)))
        except BenchFlowError as error:
            refused = NodeAction(name, BRANCH_TITLES[name], None, str(error), error.hint)
            found.append(refused)
    return found


def find_offer(action: BranchAction, source: BranchSource, node: RolloutNode) -> BranchOffer:
    """Return the checkpoint that an action at `node` continues from.

    Raises:
        RolloutStateError: The rollout runs, or its files are not on this machine.
        NoCheckpointError: No checkpoint was saved where the action needs one.
        UsageError: Another user wrote the checkpoint.
        StoreError: The checkpoint is damaged.
    """
    _check_rollout(source.entry)
    if action == "branch":
        return _offer(source, node, _effect(None))
    return _best_offer(source, node)


def _check_rollout(entry: RolloutEntry) -> None:
    if not entry.has_files:
        raise RolloutStateError(
            f"the files of rollout {entry.id!r} are not on this machine",
            hint="give the order on the machine that ran the rollout",
        )
    if entry.status == "running":
        raise RolloutStateError(
            f"rollout {entry.id!r} still runs", hint="branch when the rollout has ended"
        )


def _offer(source: BranchSource, node: RolloutNode, effect: str) -> BranchOffer:
    path = source.saved.get(node.id)
    if path is None:
        raise _no_checkpoint(source, node)
    manifest = read_trusted_manifest(path, trust=False)
    if manifest.ended:
        effect = f"{effect} The agent had ended there, so only the grading runs again."
    return BranchOffer(node.id, path.name, manifest.fidelity, _why(manifest, node), effect)


def _best_offer(source: BranchSource, node: RolloutNode) -> BranchOffer:
    values = source.facts.values
    scored = [(values[child.id].mean, child) for child in node.children if child.id in values]
    if not scored:
        raise RolloutStateError(
            f"no child of node {node.id!r} has a score", hint="read the verdicts of the children"
        )
    mean, best = max(scored, key=lambda pair: pair[0])
    leaves = [leaf for leaf in best.leaves if leaf.reward is not None]
    leaf = max(leaves, key=lambda each: each.reward or 0.0)
    for each in _between(leaf, best):
        path = source.saved.get(each.id)
        if path is not None and not read_trusted_manifest(path, trust=False).ended:
            return _offer(source, each, _effect(f"child {best.id!r} (V {mean:.2f})"))
    raise NoCheckpointError(
        f"no checkpoint with turns left was saved at the best child {best.id!r} or below it",
        hint=_KEEP_HINT,
    )


def _between(leaf: RolloutNode, top: RolloutNode) -> Iterator[RolloutNode]:
    """Yield the nodes from `leaf` up to `top`, which is above it."""
    for node in reversed(leaf.path):
        yield node
        if node is top:
            return


def _newest_by_node(directory: Path) -> Mapping[str, Path]:
    """Return the newest checkpoint of each node: `NODE`, else the last of `NODE.2` and so on."""
    found: dict[str, tuple[int, Path]] = {}
    for path in checkpoint_paths(directory):
        node, _, number = path.name.rpartition(".")
        is_numbered = bool(node) and number.isascii() and number.isdigit()
        name, place = (node, int(number)) if is_numbered else (path.name, 1)
        if place >= found.get(name, (0, path))[0]:
            found[name] = place, path
    return {name: path for name, (_, path) in found.items()}


def _no_checkpoint(source: BranchSource, node: RolloutNode) -> NoCheckpointError:
    above = [each.id for each in node.path[:-1] if each.id in source.saved]
    nearest = f"the nearest one above is at {above[-1]!r}; " if above else ""
    return NoCheckpointError(
        f"no checkpoint was saved at node {node.id!r}", hint=f"{nearest}{_KEEP_HINT}"
    )


def _why(manifest: CheckpointManifest, node: RolloutNode) -> str:
    if manifest.fidelity == "live":
        return ""
    if node.branch is not None and node.branch.fidelity == manifest.fidelity:
        return node.branch.reason
    if manifest.fidelity == "replay":
        return "the agent repeats its turn from recorded model calls"
    return "the checkpoint has files and conversations, and no processes"


def _effect(child: str | None) -> str:
    where = "from this node" if child is None else f"from the state of {child}"
    return f"New rollouts continue {where}. The stored rollout does not change."


def read_count(text: str) -> int:
    """Return the number of continuations in a form.

    Raises:
        UsageError: The text is not a number from 1 to 64.
    """
    count = int(text) if _NUMBER.fullmatch(text) else 0
    if not 1 <= count <= _MOST:
        raise UsageError(
            f"{text[:20]!r} is not a number from 1 to {_MOST}",
            hint="give the number of continuations",
        )
    return count


def branch_words(
    entry: RolloutEntry, offer: BranchOffer, count: int, jobs_dir: Path
) -> tuple[str, ...]:
    """Return the words after `bench` that continue a rollout from a checkpoint."""
    words = ("rollout", "branch", str(entry.directory.resolve()), "--at", offer.checkpoint)
    return (*words, "--n", str(count), "--jobs-dir", str(jobs_dir.resolve()))
