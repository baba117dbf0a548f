"""Sources of rollout groups for a live trainer: finished rollouts, and tasks that are requested.

A source is used by one event loop, but `set_policy_version` may be called from any thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol

from benchflow_contracts import FinishedRollout, SampleGroup, UsageError

from .rollout_groups import RolloutGroup, TrainerOptions, group_rollouts
from .trainer import group_of


class GroupSource(Protocol):
    """Yields groups of rollouts, as many as it has."""

    def groups(self) -> AsyncGenerator[RolloutGroup, None]:
        """Yield groups. Closing the iterator ends the work on groups that were not yielded."""
        ...

    def set_policy_version(self, version: int) -> None:
        """Use these weights, which the model endpoint has from now on, for new rollouts."""
        ...


class GroupServer(Protocol):
    """Runs or finds the rollouts of one task."""

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Return a group of about `size` leaves. A rollout that failed is in its `excluded`.

        Raises:
            UsageError: The server does not have the task, or does not have more rollouts of it.
        """
        ...

    def set_policy_version(self, version: int) -> None:
        """Use these weights, which the model endpoint has from now on, for new rollouts."""
        ...


class StoredGroups:
    """Finished rollouts, such as those of a job, each once: a GroupSource and a GroupServer.

    `read` yields the rollouts, for example from `read_finished_rollouts` of benchflow-store. It is
    called once, at the first use. A group has the rollouts of one task, of one digest, by one job,
    that began with the same weights. The samples of all rollouts are in memory.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[FinishedRollout]],
        options: TrainerOptions | None = None,
    ) -> None:
        self._read = read
        self._options = options or TrainerOptions()
        self._groups: dict[str, deque[RolloutGroup]] | None = None
        self._loading = threading.Lock()

    async def groups(self) -> AsyncGenerator[RolloutGroup, None]:
        """Yield the groups that were not requested, by the first rollout of each task."""
        by_task = await asyncio.to_thread(self._load)
        for waiting in by_task.values():
            while waiting:
                yield waiting.popleft()

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Return the next group of a task, whatever its size. See `GroupServer`."""
        del size
        by_task = await asyncio.to_thread(self._load)
        if task_id not in by_task:
            raise UsageError(
                f"no stored rollout has the task {task_id!r}",
                hint=f"tasks: {', '.join(list(by_task)[:10])}",
            )
        if not by_task[task_id]:
            raise UsageError(
                f"all stored rollouts of the task {task_id!r} were used",
                hint="each rollout is trained on once; run more rollouts",
            )
        return by_task[task_id].popleft()

    def set_policy_version(self, version: int) -> None:
        """Do nothing: the rollouts are finished."""

    def _load(self) -> dict[str, deque[RolloutGroup]]:
        with self._loading:
            if self._groups is None:
                self._groups = self._read_groups()
            return self._groups

    def _read_groups(self) -> dict[str, deque[RolloutGroup]]:
        rollouts: dict[SampleGroup, list[FinishedRollout]] = {}
        for rollout in self._read():
            rollouts.setdefault(group_of(rollout), []).append(rollout)
        for key in [key for key in rollouts if key.policy_version is None]:
            # A rollout that failed before its first call is lost in a group of its prompt.
            others = (each for each in rollouts if _is_same_prompt(key, each))
            if (other := next(others, None)) is not None:
                rollouts[other] += rollouts.pop(key)
        groups: dict[str, deque[RolloutGroup]] = {}
        for key, group in rollouts.items():
            made = group_rollouts(key.task_id, group, self._options)
            groups.setdefault(key.task_id, deque()).append(made)
        return groups


def _is_same_prompt(key: SampleGroup, other: SampleGroup) -> bool:
    return (
        other.policy_version is not None
        and other.model_copy(update={"policy_version": None}) == key
    )


class RequestedGroups:
    """A GroupSource that requests the groups of tasks from a GroupServer, in turn.

    `in_flight` groups are requested at a time. Groups are yielded as they end. With `epochs`, each
    task is requested as often; otherwise without an end.
    """

    def __init__(
        self,
        server: GroupServer,
        tasks: Sequence[str],
        size: int,
        *,
        in_flight: int = 1,
        epochs: int | None = None,
    ) -> None:
        if not tasks or size < 1 or in_flight < 1:
            raise UsageError(
                f"cannot request groups of {size} of {len(tasks)} tasks, {in_flight} at a time",
                hint="all three numbers are at least 1",
            )
        self._server = server
        self._tasks = tuple(tasks)
        self._size = size
        self._in_flight = in_flight
        self._epochs = epochs

    async def groups(self) -> AsyncGenerator[RolloutGroup, None]:
        """Yield groups. The error of a request ends the iterator; see `GroupServer.request`."""
        turns = iter(self._turns())
        pending: set[asyncio.Task[RolloutGroup]] = set()
        try:
            while True:
                while len(pending) < self._in_flight and (task := next(turns, None)) is not None:
                    request = self._server.request(task, self._size)
                    # A TaskGroup cannot be open over a yield; `finally` ends these tasks.
                    pending.add(asyncio.create_task(request))  # noqa: TID251
                if not pending:
                    return
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    yield each.result()
        finally:
            for each in pending:
                each.cancel()
            if pending:
                await asyncio.wait(pending)

    def set_policy_version(self, version: int) -> None:
        """Pass the version on to the server."""
        self._server.set_policy_version(version)

    def _turns(self) -> Iterable[str]:
        at = 0
        while self._epochs is None or at < self._epochs * len(self._tasks):
            yield self._tasks[at % len(self._tasks)]
            at += 1
