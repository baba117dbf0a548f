"""Score the members of a group together, when the last member has ended."""

import asyncio
import logging
from typing import Final

from benchflow_contracts import BenchFlowError, GroupReward, RolloutTree, StoreError, Task
from benchflow_engine.group_scores import score_trees
from benchflow_engine.model_gateway import open_judge
from benchflow_kernel import value_of
from benchflow_store import GroupRecord, LostMember, StoredRollout

from .attempts import task_of
from .entries import Entry
from .groups import Group, GroupTable
from .parts import ServiceParts
from .results import leaf_scores
from .rollouts import RolloutBoard

_logger = logging.getLogger(__name__)
_AGAIN_SEC: Final = 1.0


class GroupScorer:
    """Scores groups, one after the other. Each verdict is recorded before a client sees it."""

    def __init__(
        self, reward: GroupReward, parts: ServiceParts, groups: GroupTable, board: RolloutBoard
    ) -> None:
        self._reward = reward
        self._parts = parts
        self._groups = groups
        self._board = board

    async def run(self) -> None:
        """Score each group whose members have ended, until this task is cancelled."""
        while True:
            changed = self._board.changed
            for group in self._groups.unscored(self._board.entries):
                await self._score(group)
            await changed.wait()

    async def _score(self, group: Group) -> None:
        lost: list[LostMember] = []
        trees: dict[str, RolloutTree] = {}
        task: Task | None = None
        for ident in group.ids:
            entry = self._board.entries.get(ident)
            if entry is None:
                lost.append(LostMember(name=ident, reason="its result was deleted"))
                continue
            try:
                trees[ident] = await asyncio.to_thread(self._read, entry)
                task = task or await asyncio.to_thread(task_of, entry, self._parts)
            except BenchFlowError as error:
                trees.pop(ident, None)
                lost.append(LostMember(name=ident, reason=f"{type(error).__name__}: {error}"))
        await self._record(group, await self._verdicts(group, task, trees, lost), trees)

    async def _verdicts(
        self,
        group: Group,
        task: Task | None,
        trees: dict[str, RolloutTree],
        lost: list[LostMember],
    ) -> GroupRecord:
        if task is None:
            return GroupRecord(
                task=group.saved.task, task_digest="", reward=self._reward.name, lost=tuple(lost)
            )
        async with open_judge(self._parts.settings.config, None) as judge:
            return await score_trees(
                self._reward, task, list(trees.values()), lost=lost, judge=judge
            )

    def _read(self, entry: Entry) -> RolloutTree:
        directory = self._board.directory_of(entry)
        if directory is None or not (stored := StoredRollout(directory)).has_events:
            error = entry.status.error
            reason = entry.status.outcome if error is None else f"{error.type}: {error.message}"
            raise StoreError(f"it has no record: {reason}")
        return stored.tree

    async def _record(
        self, group: Group, record: GroupRecord, trees: dict[str, RolloutTree]
    ) -> None:
        """Write the verdicts; a full disk is tried again."""
        group.saved = group.saved.model_copy(update={"scored": record})
        if record.reward == "reward":
            for ident, tree in trees.items():
                if (entry := self._board.entries.get(ident)) is not None:
                    value = value_of(tree.root)
                    reward = None if value is None else value.mean
                    entry.set_status(leaves=leaf_scores(tree), reward=reward)
        while True:
            try:
                entries = [
                    self._board.entries[each] for each in trees if each in self._board.entries
                ]
                bodies = [(entry.id, entry.dump()) for entry in entries]
                self._parts.store.save_group(group.saved.id, group.saved.model_dump_json(), bodies)
                break
            except StoreError as error:
                _logger.warning("the verdicts of group %s wait: %s", group.saved.id, error)
                await asyncio.sleep(_AGAIN_SEC)
        group.is_scored = True
        self._board.wake_all()
