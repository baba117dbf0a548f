"""Deletes what clients do not need any more: acknowledged results, and their tasks."""

import asyncio
import time
from typing import TYPE_CHECKING

from .groups import GroupTable
from .rollouts import RolloutBoard
from .task_catalogue import InlineTasks

if TYPE_CHECKING:
    from .entries import Entry


class ResultDeleter:
    """Deletes the files of a result before its row, so that a killed server leaves no files."""

    def __init__(
        self, board: RolloutBoard, groups: GroupTable, tasks: InlineTasks, keep_sec: float
    ) -> None:
        self._board = board
        self._groups = groups
        self._tasks = tasks
        self._keep_sec = keep_sec
        self._old: dict[str, Entry] = {}
        """Acknowledged results that no client can read any more."""
        self._has_tasks_to_check = True

    async def delete(self) -> None:
        """Delete old acknowledged results, and the groups and tasks that only they had.

        Raises:
            StoreError: A row cannot be deleted. The next call tries it again.
        """
        board, before = self._board, time.time() - self._keep_sec
        for entry in list(board.entries.values()):
            at = entry.saved.acknowledged_at
            if at is not None and at <= before:
                board.forget(entry)
                self._old[entry.id] = entry
                self._has_tasks_to_check = True
        for ident, entry in list(self._old.items()):
            await asyncio.to_thread(board.delete_files, entry)
            board.store.delete(ident, self._groups.without(entry))
            self._old.pop(ident, None)
        self._groups.delete_empty(board.store, board.entries)
        if self._has_tasks_to_check:
            self._has_tasks_to_check = False
            await self._tasks.delete_unused(self._used_tasks)

    def _used_tasks(self) -> set[str | None]:
        entries = (*self._board.entries.values(), *self._old.values())
        return {entry.saved.inline_task for entry in entries}
