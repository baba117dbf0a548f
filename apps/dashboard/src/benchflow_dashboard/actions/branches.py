"""Branches from a node of a stored rollout: the checkpoint, its fidelity, and the command."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from benchflow_contracts import BenchFlowError, Fidelity, RolloutNode, RolloutTree, UsageError
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
_FIDELITIES: Final[tuple[Fidelity, ...]] = ("live", "state", "replay")
"""The best one first."""
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
    needs_prompt: bool = False
    """Whether the schedule of prompts has ended, so that only a new prompt continues."""


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
    saved: Mapping[str, Sequence[Path]]
    """The checkpoints of each node, the oldest first."""

    @classmethod
    def of(cls, entry: RolloutEntry, tree: RolloutTree, facts: TreeFacts) -> "BranchSource":
        """List the checkpoints of a rollout. None is read.

        Raises:
            StoreError: The directory of the checkpoints cannot be read.
        """
        return cls(entry, tree, facts, _by_node(entry.directory))


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
    path, manifest = _best_checkpoint(source, node)
    left = _work_left(manifest)
    if left == "grading":
        effect = f"{effect} The agent had ended there, so only the grading runs again."
    elif left == "nothing":
        effect = f"{effect} All prompts were used, so a new prompt is needed."
    return BranchOffer(
        node.id,
        path.name,
        manifest.fidelity,
        _why(manifest, node),
        effect,
        needs_prompt=left == "nothing",
    )


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
        if each.id not in source.saved:
            continue
        _, manifest = _best_checkpoint(source, each)
        if _work_left(manifest) == "turns":
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


def _by_node(directory: Path) -> Mapping[str, Sequence[Path]]:
    """Return the checkpoints of each node: `NODE`, then `NODE.2` and so on."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in checkpoint_paths(directory):
        node, _, number = path.name.rpartition(".")
        is_numbered = bool(node) and number.isascii() and number.isdigit()
        name, place = (node, int(number)) if is_numbered else (path.name, 1)
        found.setdefault(name, []).append((place, path))
    return {name: [path for _, path in sorted(pairs)] for name, pairs in found.items()}


def _best_checkpoint(source: BranchSource, node: RolloutNode) -> tuple[Path, CheckpointManifest]:
    """Return the checkpoint of a node with the best fidelity, the newest of equal ones.

    Raises:
        BenchFlowError: The node has no checkpoint that can be used; the reason is the newest's.
    """
    good: list[tuple[Path, CheckpointManifest]] = []
    problem: BenchFlowError = _no_checkpoint(source, node)
    for path in source.saved.get(node.id, ()):
        try:
            good.append((path, read_trusted_manifest(path, trust=False)))
        except BenchFlowError as error:
            problem = error
    if not good:
        raise problem
    return max(reversed(good), key=lambda each: _rank(each[1]))


def _rank(manifest: CheckpointManifest) -> tuple[int, int]:
    """Rank what can run first, then the fidelity."""
    left = ("nothing", "grading", "turns").index(_work_left(manifest))
    return left, -_FIDELITIES.index(manifest.fidelity)


def _work_left(manifest: CheckpointManifest) -> Literal["turns", "grading", "nothing"]:
    """Return what a continuation without a new prompt would run."""
    if manifest.ended:
        return "grading"
    return "turns" if manifest.turn < len(manifest.schedule) else "nothing"


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
    entry: RolloutEntry, offer: BranchOffer, count: int, jobs_dir: Path, prompt: str = ""
) -> tuple[str, ...]:
    """Return the words after `bench` that continue a rollout from a checkpoint.

    Raises:
        RolloutStateError: The checkpoint needs a prompt, and none was given.
    """
    if offer.needs_prompt and not prompt:
        raise RolloutStateError(
            f"all prompts were used at node {offer.node!r}", hint="give a prompt"
        )
    words = ("rollout", "branch", str(entry.directory.resolve()), "--at", offer.checkpoint)
    more = (f"--prompt={prompt}",) if prompt else ()
    return (*words, "--n", str(count), *more, "--jobs-dir", str(jobs_dir.resolve()))
