"""The rollout service, without a wire: every front end submits to it and reads from it."""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from benchflow_contracts import StoreError, Task
from benchflow_engine.group_scores import load_group_reward
from benchflow_engine.preflight import check_agent
from benchflow_serve_client import (
    Capacity,
    GroupRequest,
    GroupStatus,
    RolloutEvent,
    RolloutRequest,
    RolloutResult,
    RolloutStatus,
    TaskPage,
)

from .attempts import has_network
from .deletion import ResultDeleter
from .entries import Entry, Kept, SavedRollout, without_key
from .event_stream import PAGE, check_last_event, follow
from .group_scoring import GroupScorer
from .groups import GroupTable, members_of
from .jobs import JobBoard
from .parts import ServiceParts, TaskOwner
from .policies import Policies, policy_endpoint
from .problems import (
    ConflictError,
    LimitExceededError,
    QueueFullError,
    RequestRefusedError,
    ServiceClosedError,
)
from .request_config import check_server_config, configure
from .results import render_result
from .rollouts import RolloutBoard
from .runner import RolloutRunner
from .settings import ServeSettings
from .slots import SlotPool
from .store import IdempotentRequest, ServiceStore, lock_store
from .task_catalogue import InlineTasks, TaskCatalogue

_logger = logging.getLogger(__name__)
_UPKEEP_SEC: Final = 1.0
_DATABASE: Final = "serve.db"


class RolloutService:
    """Runs rollouts for clients, in the event loop that opens it."""

    def __init__(self, settings: ServeSettings) -> None:
        """Prepare the service.

        Raises:
            UsageError: The configuration cannot serve, or two tasks have one id.
            TaskError: A task is malformed.
        """
        check_server_config(settings.config)
        self.settings = settings
        self.policies = Policies(require_tokens=settings.config.model.require_tokens)
        options = settings.config.adapter_options()
        self.catalogue = TaskCatalogue.read(settings.tasks_dirs, options)
        self._inline_tasks = InlineTasks(settings.directory / "tasks")
        self.slots = SlotPool(settings.slots)
        """What runs at once: rollouts, and attempts of jobs."""
        self.jobs = JobBoard(settings, self.slots, self.policies)
        self._group_reward = load_group_reward(settings.config)
        self._groups = GroupTable(None if self._group_reward is None else self._group_reward.name)
        self._board: RolloutBoard | None = None
        self._runner: RolloutRunner | None = None
        self._deleter: ResultDeleter | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open the record and run what it has. At the end of the block, nothing runs.

        A rollout that still runs at the end of the block is cut, and continues at the next start.

        Raises:
            UsageError: Another process serves the directory.
            StoreError: The database cannot be opened.
        """
        home = self.settings.directory
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with AsyncExitStack() as stack:
            stack.enter_context(lock_store(home / _DATABASE))
            store = ServiceStore(home / _DATABASE)
            stack.callback(store.close)
            epoch = store.begin_epoch()
            runs = home / "rollouts"
            runs.mkdir(exist_ok=True, mode=0o700)
            opened = RolloutRunner.open(self.settings.config, runs, home, epoch)
            self._runner = await stack.enter_async_context(opened)
            group = await stack.enter_async_context(TaskOwner())
            parts = ServiceParts(
                self.settings, self.policies, self.catalogue, store, self._runner, self.slots
            )
            board = self._board = RolloutBoard(parts, group)
            stack.callback(board.close)
            self._groups.load(store, board.load())
            board.recover()
            keep_sec = self.settings.keep_acknowledged_sec
            self._deleter = ResultDeleter(board, self._groups, self._inline_tasks, keep_sec)
            if self._group_reward is not None:
                scorer = GroupScorer(self._group_reward, parts, self._groups, board)
                scoring = group.create_task(scorer.run())
                stack.callback(scoring.cancel)
            await stack.enter_async_context(self.jobs.running(store))
            upkeep = group.create_task(self._keep_up())
            stack.callback(upkeep.cancel)
            yield

    @property
    def board(self) -> RolloutBoard:
        """The rollouts of the service.

        Raises:
            ServiceClosedError: The service is not running.
        """
        if self._board is None:
            raise ServiceClosedError("the service is not running")
        return self._board

    async def submit(
        self, request: RolloutRequest, *, key: str | None = None, is_tied: bool = False
    ) -> RolloutStatus:
        """Put a rollout into the queue, durably.

        With `key`, the same request again returns the same rollout. A rollout that `is_tied` to
        the connection of its client does not continue after a kill of the server.

        Raises:
            RequestRefusedError: The request is wrong, or not allowed.
            ConflictError: Another request had the key, or the place in its group is taken.
            QueueFullError: The queue is full.
        """
        digest = _digest(request)
        if found := self._find(key, "rollout", digest):
            return self.status(found)
        async with self._task_of(request) as task:
            request = await self._settle(request)
            # Another request may have come while the task was written.
            if found := self._find(key, "rollout", digest):
                return self.status(found)
            self._check(request)
            self._require_room(1)
            group = self._groups.join(request, task.id, self._version_of(request))
            entry = self._new_entry(request, task)
            entry.update(is_tied=is_tied)
            marked = None if key is None else (key, IdempotentRequest(digest, "rollout", entry.id))
            self.board.add([entry], group=group, key=marked)
            self._groups.add([entry], group)
            return self.status(entry.id)

    async def submit_group(self, request: GroupRequest, *, key: str | None = None) -> GroupStatus:
        """Put all rollouts of a group into the queue, or none.

        Raises:
            RequestRefusedError: The request is wrong, or not allowed.
            ConflictError: Another request had the key, or a group has the id.
            QueueFullError: The queue has no place for all of them.
        """
        digest = _digest(request)
        if found := self._find(key, "group", digest):
            return self.group(found)
        async with self._task_of(request.rollout) as task:
            request = request.model_copy(update={"rollout": await self._settle(request.rollout)})
            if found := self._find(key, "group", digest):
                return self.group(found)
            self._check(request.rollout)
            self._require_room(request.size)
            name = request.id or f"group-{secrets.token_hex(8)}"
            if name in self._groups:
                raise ConflictError(f"a group has the id {name!r} already")
            members = members_of(request.rollout, name, request.size)
            saved = self._groups.join(members[0], task.id, self._version_of(members[0]))
            entries = [self._new_entry(member, task) for member in members]
            marked = None if key is None else (key, IdempotentRequest(digest, "group", name))
            self.board.add(entries, group=saved, key=marked)
            self._groups.add(entries, saved)
            return self.group(name)

    def status(self, ident: str) -> RolloutStatus:
        """Return a rollout without its result.

        Raises:
            NotFoundError: No rollout has the id.
        """
        entry = self.board.find(ident)
        place = self.board.queue.position(entry)
        if place is None:
            return entry.status
        return entry.status.model_copy(update={"queue_position": place})

    def statuses(self) -> Sequence[RolloutStatus]:
        """Return each rollout that the service still has, the oldest first."""
        return [entry.status for entry in self.board.entries.values()]

    async def result(self, ident: str) -> RolloutResult:
        """Return the result of an ended rollout.

        Raises:
            NotFoundError: No rollout has the id.
            ConflictError: The rollout has not ended, or its group is not scored.
            StoreError: A file of the rollout is damaged.
        """
        entry = self.board.find(ident)
        status, request = entry.status, entry.request
        if status.state != "ended":
            raise ConflictError(
                f"rollout {ident!r} is {status.state}", hint="its events end with the kind 'ended'"
            )
        scored = self._groups.scored(request.group)
        directory = self.board.directory_of(entry)
        return await asyncio.to_thread(
            render_result, status, request.render, request.training, directory, scored
        )

    def events(
        self, ident: str, after: int = 0, *, beat_sec: float | None = None
    ) -> AsyncGenerator[RolloutEvent | None]:
        """Return the events of a rollout after number `after`, until it ends or the service stops.

        With `beat_sec`, None comes whenever nothing happened for so long.

        Raises:
            NotFoundError: No rollout has the id.
            ConflictError: The rollout has no event `after`.
        """
        entry, board = self.board.find(ident), self.board
        check_last_event(after, entry.last_event)

        def is_over(number: int) -> bool:
            has_ended = entry.status.state == "ended" and number >= entry.last_event
            return has_ended or board.is_stopping

        return follow(
            lambda number: board.store.events(ident, number, PAGE),
            lambda: entry.changed,
            is_over,
            after,
            beat_sec,
        )

    def acknowledge(self, ident: str) -> RolloutStatus:
        """Note that the client has the result, which is deleted later. Idempotent.

        Raises:
            NotFoundError: No rollout has the id.
            ConflictError: The rollout has not ended.
        """
        entry = self.board.find(ident)
        if entry.status.state != "ended":
            raise ConflictError(f"rollout {ident!r} has not ended, so it has no result")
        self.board.acknowledge(entry)
        return self.status(ident)

    async def cancel(self, ident: str, *, keep: Kept = "none") -> RolloutStatus:
        """End a rollout, and return it. An ended one stays as it is.

        `none` deletes its files, and `tree` keeps the part that has ended. `checkpoint` parks it:
        a rollout that runs is saved at its next state that can be restored.

        Raises:
            NotFoundError: No rollout has the id.
            ConflictError: It cannot be parked.
        """
        entry = self.board.find(ident)
        if keep == "checkpoint":
            await self.board.park(entry)
        else:
            await self.board.stop(entry, "cancel", keep)
        return self.status(ident)

    def resume(
        self, ident: str, *, policy_version: str | None = None, key: str | None = None
    ) -> RolloutStatus:
        """Put a parked rollout into the queue again.

        With `key`, the same request again returns the rollout, whatever its state is now.

        Raises:
            NotFoundError: No rollout has the id.
            ConflictError: The rollout is not parked, or its policy has another version.
        """
        entry = self.board.find(ident)
        digest = hashlib.sha256(f"{ident} {policy_version}".encode()).hexdigest()
        if self._find(key, "resume", digest) is not None:
            return self.status(ident)
        if entry.status.state != "parked":
            raise ConflictError(f"rollout {ident!r} is {entry.status.state}, and not parked")
        if policy_version is not None:
            newest = entry.request.policy and self.policies.newest(entry.request.policy)
            version = newest.policy_version if newest else None
            if version != policy_version:
                raise ConflictError(
                    f"the newest version of the policy is {version!r}, not {policy_version!r}"
                )
        marked = None if key is None else (key, IdempotentRequest(digest, "resume", ident))
        self.board.resume(entry, marked)
        return self.status(ident)

    def group(self, ident: str) -> GroupStatus:
        """Return a group.

        Raises:
            NotFoundError: No group has the id.
        """
        return self._groups.status(ident, self.board.entries, self.status)

    async def wait_group(self, ident: str, seconds: float) -> GroupStatus:
        """Return a group when it has ended, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A status of all members at each end of a rollout would cost too much.
                while not self._groups.has_ended(ident, self.board.entries):
                    if self.board.is_stopping:
                        break
                    await self.board.changed.wait()
        return self.group(ident)

    def tasks(self, after: str = "", limit: int = 100) -> TaskPage:
        """Return the tasks with a greater id than `after`."""
        return self.catalogue.page(after, limit)

    async def capacity(self) -> Capacity:
        """Return what the service does, and what it could do."""
        board = self.board
        states = Counter(entry.status.state for entry in board.entries.values())
        ended = [e.status for e in board.entries.values() if e.status.state == "ended"]
        policies = self.policies.statuses()
        assert self._runner is not None
        return Capacity(
            slots=self.settings.slots,
            running=states["running"],
            slots_used=self.slots.used,
            queued=states["queued"],
            queue_limit=self.settings.queue,
            parked=states["parked"],
            in_flight={each.name: each.in_flight for each in policies},
            tokens={each.name: each.tokens for each in policies},
            unacknowledged=sum(not status.is_acknowledged for status in ended),
            sandboxes=await self._runner.count_sandboxes(),
            tokens_per_sec=board.tokens.per_second(),
            ended=board.ended,
            losses=dict(board.losses),
        )

    def stop_streams(self) -> None:
        """End every stream of events and every wait for a group, because the server stops."""
        if self._board is not None:
            self._board.stop_streams()
        self.jobs.stop_streams()

    async def drain(self) -> None:
        """Start nothing more, and wait until what runs has ended. The queue stays on disk."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.board.drain())
            group.create_task(self.jobs.drain())

    @asynccontextmanager
    async def _task_of(self, request: RolloutRequest) -> AsyncGenerator[Task]:
        if isinstance(request.task, str):
            yield self.catalogue.find(request.task)
            return
        if not self.settings.allow_inline_tasks:
            raise RequestRefusedError(
                "the service takes no inline tasks",
                status=403,
                hint="the operator allows them with --allow-inline-tasks",
            )
        async with self._inline_tasks.stored(request.task) as task:
            yield task

    async def _settle(self, request: RolloutRequest) -> RolloutRequest:
        """Return the request with the protocol of its own endpoint, if that was `auto`."""
        if request.endpoint is None:
            return request
        endpoint, _ = await self.policies.settle(request.endpoint)
        return request.model_copy(update={"endpoint": endpoint})

    def _check(self, request: RolloutRequest) -> None:
        settings = self.settings
        endpoint = None if request.endpoint is None else policy_endpoint(request.endpoint)
        if request.policy is not None:
            endpoint = self.policies.newest(request.policy)
        config = configure(
            settings.config, request, endpoint=endpoint, agents=settings.allow_agents
        )
        check_agent(config)
        settings.caps.check(request, config.branch if request.branch is not None else None)

    def _reruns(self, request: RolloutRequest, task: Task) -> bool:
        """Return whether a rollout runs again after the end of its server.

        Raises:
            RequestRefusedError: The request asks for it, and its work may have effects outside.
        """
        choice = request.on_restart or self.settings.on_restart
        if choice != "rerun":
            return False
        reaches_out = has_network(task, offline=self.settings.config.offline)
        if request.on_restart == "rerun" and reaches_out:
            raise RequestRefusedError(
                f"task {task.id!r} has a network, so a second run may repeat effects outside",
                hint="leave out on_restart, or use a task with network = 'none'",
                where="on_restart",
            )
        return not reaches_out

    def _require_room(self, count: int) -> None:
        board = self.board
        if count > (most := self.settings.queue + self.settings.slots):
            raise LimitExceededError(
                f"the group has {count} rollouts, and the service has room for {most} at most",
                hint="submit smaller groups; the operator enlarges the queue with --queue",
                where="size",
            )
        if board.is_draining:
            raise ServiceClosedError("the service stops, and takes no rollouts")
        if len(board.queue) + count > self.settings.queue + self.slots.free:
            raise QueueFullError(
                f"the queue has {len(board.queue)} of {self.settings.queue} rollouts, and no place"
                f" for {count} more"
            )

    def _new_entry(self, request: RolloutRequest, task: Task) -> Entry:
        stored, key = without_key(request)
        if not isinstance(stored.task, str):
            # The files of the task are on disk.
            stored = stored.model_copy(update={"task": stored.task.id})
        status = RolloutStatus(
            id=f"r-{secrets.token_hex(8)}",
            state="queued",
            task=task.id,
            task_digest=task.digest,
            group=request.group,
            policy=request.policy,
            priority=request.priority,
            created_at=time.time(),
        )
        saved = SavedRollout(
            status=status,
            request=stored,
            needs_key=key is not None,
            group_version=None if request.group is None else self._version_of(request),
            reruns=self._reruns(request, task),
            inline_task=None if isinstance(request.task, str) else str(task.path.resolve()),
        )
        return Entry(self.board.next_seq(), saved, key, loaded_task=task)

    def _version_of(self, request: RolloutRequest) -> str | None:
        name = request.policy
        return None if name is None else self.policies.newest(name).policy_version

    def _find(self, key: str | None, kind: str, digest: str) -> str | None:
        """Return the id that an earlier request with this key got.

        Raises:
            ConflictError: That request was another one.
        """
        if key is None:
            return None
        found = self.board.store.find_key(key)
        if found is None:
            return None
        if (found.kind, found.digest) != (kind, digest):
            raise ConflictError(
                f"the Idempotency-Key {key!r} was used for another request",
                hint="make a new key for each new request",
            )
        return found.target

    async def delete_acknowledged(self) -> None:
        """Delete acknowledged results that are old enough, and groups without members."""
        assert self._deleter is not None
        await self._deleter.delete()

    async def _keep_up(self) -> None:
        while True:
            self.board.keep_up()
            try:
                await self.delete_acknowledged()
            except StoreError as error:
                _logger.warning("old results are not deleted: %s", error)
            await asyncio.sleep(_UPKEEP_SEC)


def _digest(request: RolloutRequest | GroupRequest) -> str:
    """Return the sha256 of a request. The key of an endpoint does not count: it is masked."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()
