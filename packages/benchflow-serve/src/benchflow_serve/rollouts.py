"""The rollouts of the service: which one runs next, and what becomes of each."""

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    BenchFlowError,
    Branched,
    Cause,
    Event,
    NodeError,
    NodeScored,
    RolloutRecord,
    RolloutStarted,
    RolloutTree,
    StepFinished,
    UsageReported,
)
from benchflow_contracts.pausing import PauseSwitch
from benchflow_kernel import TreeFold
from benchflow_kernel.faults import node_error
from benchflow_serve_client import LeafScore, Outcome
from benchflow_store import StoredRollout, new_rollout_id

from .attempts import attempt_of
from .caps import SpendingTracker
from .entries import (
    Entry,
    Kept,
    RolloutQueue,
    SavedRollout,
    Stop,
    TokenRate,
    outcome_of,
    unchanged_on_error,
    versions_after,
)
from .groups import SavedGroup
from .journal import RolloutJournal
from .model_source import FixedModel, ModelUse
from .parts import ServerLostError, ServiceParts
from .policies import PolicyOrder, PolicyUse
from .problems import ConflictError, NotFoundError
from .recovery import recovery_of
from .results import leaf_score, leaf_scores
from .store import IdempotentRequest

_logger = logging.getLogger(__name__)
_STOP_SEC: Final = 10.0
_PARK_SEC: Final = 2.0
_POLL_SEC: Final = 0.02
_TREE_EVENTS: Final = {RolloutStarted, StepFinished, Branched, NodeScored}


class RolloutBoard:
    """The rollouts of a service by id, its queue, and what runs. Each change is recorded first."""

    def __init__(self, parts: ServiceParts, group: asyncio.TaskGroup) -> None:
        self._parts = parts
        self.store = parts.store
        self._journal = RolloutJournal(parts.store)
        self._group = group
        self._home = parts.settings.directory / "rollouts"
        self.entries: dict[str, Entry] = {}
        self.queue = RolloutQueue()
        self.running: set[str] = set()
        self.tokens = TokenRate()
        self.ended = 0
        self.losses: Counter[str] = Counter()
        self.changed = asyncio.Event()
        """Set, and replaced, when a rollout ends."""
        parts.slots.on_free = self._start_next
        self._seq = 0
        self._is_draining = False
        self._is_closed = False
        self.is_stopping = False
        """Whether streams of events end."""
        self._without_policy: list[Entry] = []
        """Rollouts of an earlier server that wait for their policy to be registered again."""

    @property
    def is_draining(self) -> bool:
        """Whether nothing more starts."""
        return self._is_draining or self._is_closed

    def next_seq(self) -> int:
        """Return the number of a new rollout."""
        self._seq += 1
        return self._seq

    def find(self, ident: str) -> Entry:
        """Return a rollout.

        Raises:
            NotFoundError: No rollout has the id.
        """
        try:
            return self.entries[ident]
        except KeyError:
            raise NotFoundError(
                f"the service has no rollout {ident!r}",
                hint="an acknowledged rollout is deleted after a while",
            ) from None

    def directory_of(self, entry: Entry) -> Path | None:
        """Return the directory of the last attempt; None if nothing ran."""
        attempts = entry.saved.attempts
        return self._home / attempts[-1] if attempts else None

    def add(
        self,
        entries: Sequence[Entry],
        *,
        group: SavedGroup | None,
        key: tuple[str, IdempotentRequest] | None,
    ) -> None:
        """Record new rollouts, and put them into the queue."""
        rows = [(e.seq, e.id, e.dump(), self._journal.event(e, "queued")) for e in entries]
        saved = None if group is None else (group.id, group.created_at, group.model_dump_json())
        self.store.add(rows, group=saved, key=key)
        for entry in entries:
            self.entries[entry.id] = entry
            self._enqueue(entry)
        self._start_next()

    def load(self) -> list[Entry]:
        """Read the rollouts of earlier servers, in their order."""
        for seq, body in self.store.rollouts():
            saved = SavedRollout.model_validate_json(body)
            entry = Entry(seq, saved, last_event=self.store.last_event_id(saved.status.id))
            self.entries[entry.id] = entry
            self._seq = max(self._seq, seq)
        return list(self.entries.values())

    def recover(self) -> None:
        """Continue, finish, end or keep each rollout of an earlier server."""
        for entry in self.entries.values():
            self._recover(entry)
        self._start_next()

    def _recover(self, entry: Entry) -> None:
        match recovery_of(entry.saved, self._home):
            case "queue":
                self._requeue(entry)
            case "continue":
                self._requeue(entry, resumes=entry.saved.attempts[-1])
            case "park":
                self._park(entry, resumes=entry.saved.attempts[-1])
            case "finish":
                self._finish_from_disk(entry)
            case "stop":
                self._end(entry, outcome_of(entry.saved.stop))
                self._group.create_task(self._clean(entry))
            case "rerun":
                self._rerun(entry)
            case "lose":
                self._fail(entry, ServerLostError("the server ended while the rollout ran"))
            case "abandon":
                self._abandon(entry)
            case "keep":
                pass

    def _abandon(self, entry: Entry) -> None:
        """End a rollout whose result nobody can ask for. It is deleted later."""
        entry.update(acknowledged_at=time.time())
        entry.set_status(is_acknowledged=True)
        if entry.status.state == "ended":
            self._journal.save(entry)
        else:
            self._fail(entry, ServerLostError("the server ended before the rollout"))

    def keep_up(self) -> None:
        """Write what a full disk refused. Queue the rollouts whose policy is registered again."""
        self._journal.catch_up()
        waiting, self._without_policy = self._without_policy, []
        for entry in waiting:
            if entry.status.state == "queued":
                self._enqueue_again(entry)
        self._start_next()

    def _enqueue_again(self, entry: Entry) -> None:
        """Queue a rollout whose policy may have another version than its group began with."""
        name, version = entry.request.policy, entry.saved.group_version
        if name is not None and version is not None and name in self._parts.policies:
            newest = self._parts.policies.newest(name).policy_version
            if newest != version:
                message = f"the policy has version {newest!r} now, and the group {version!r}"
                self._fail(entry, ServerLostError(message))
                return
        self._enqueue(entry)

    def acknowledge(self, entry: Entry) -> None:
        """Note that the client has the result. Idempotent."""
        if entry.saved.acknowledged_at is None:
            with unchanged_on_error(entry):
                entry.update(acknowledged_at=time.time())
                entry.set_status(is_acknowledged=True)
                self.store.save(entry.id, entry.dump())

    def forget(self, entry: Entry) -> None:
        """Let no client find a rollout any more. Its row and its files stay."""
        self._journal.forget(entry)
        del self.entries[entry.id]

    def delete_files(self, entry: Entry) -> None:
        """Delete the directories of all attempts. Call this in a thread."""
        for name in entry.saved.attempts:
            shutil.rmtree(self._home / name, ignore_errors=True)

    async def stop(self, entry: Entry, stop: Stop, keep: Kept) -> None:
        """End a rollout, and wait until it is torn down. Idempotent."""
        if entry.status.state == "ended":
            return
        if not entry.is_stopping:  # Else a second cancellation would cut the teardown.
            entry.update(stop=stop, keeps=keep)
            self._journal.save(entry)
            if entry.task is not None:
                entry.task.cancel()
        if (work := entry.task) is None:
            self.queue.remove(entry)
            self._end(entry, outcome_of(stop))
            # A task of the service: the client may go away meanwhile.
            work = self._group.create_task(self._clean(entry))
        await asyncio.wait([work], timeout=_STOP_SEC)

    async def _clean(self, entry: Entry) -> None:
        """Delete the files of a rollout that was cancelled without keeping any."""
        if entry.saved.keeps == "none" and entry.status.state == "ended":
            await asyncio.to_thread(self.delete_files, entry)

    async def park(self, entry: Entry) -> None:
        """Save a rollout, and end its run. Wait a moment for it.

        Raises:
            ConflictError: It has ended, or it cannot be saved.
        """
        state = entry.status.state
        if state == "ended":
            raise ConflictError(f"rollout {entry.id!r} has ended, so it cannot be parked")
        if state == "queued":
            self.queue.remove(entry)
            self._park(entry, resumes=entry.saved.resumes)
        if state != "running" or entry.switch is None:
            return
        self._request_save(entry)
        until = time.monotonic() + _PARK_SEC
        while entry.status.state == "running" and time.monotonic() < until:
            if (refusal := entry.status.park_refusal) is not None:
                raise ConflictError(
                    f"rollout {entry.id!r} cannot be parked: {refusal}",
                    hint="it continues to run",
                )
            await asyncio.sleep(_POLL_SEC)

    def _on_save_refused(self, entry: Entry, reason: str) -> None:
        """Note that a rollout cannot be parked. A client may have left long ago."""
        if not entry.is_stopping:
            entry.update(stop="none")
        entry.set_status(park_refusal=reason)
        self._journal.record(entry, "park_refused", reason=reason)

    def resume(self, entry: Entry, key: tuple[str, IdempotentRequest] | None = None) -> None:
        """Put a parked rollout into the queue. `key` is recorded with it."""
        with unchanged_on_error(entry):
            entry.update(stop="none")
            entry.set_status(state="queued")
            event = self._journal.event(entry, "resumed")
            self.store.save(entry.id, entry.dump(), (event,), key)
        entry.wake()
        self._enqueue(entry)
        self._start_next()

    async def drain(self) -> None:
        """Start nothing more, and wait until what runs has ended."""
        self._is_draining = True
        while self.running:
            await self.changed.wait()

    def close(self) -> None:
        """Cut what runs. It continues at the next start of the service."""
        self._is_closed = True
        self.stop_streams()
        for entry in self.entries.values():
            if entry.task is not None:
                entry.task.cancel()

    def stop_streams(self) -> None:
        """Wake all that follow a rollout or wait for one, because the server stops."""
        self.is_stopping = True
        for entry in self.entries.values():
            entry.wake()
        self.wake_all()

    def _enqueue(self, entry: Entry) -> None:
        if entry.use is None and not self._reserve(entry):
            return
        self.queue.push(entry)

    def _reserve(self, entry: Entry) -> bool:
        """Take the model of a rollout. Return whether it can wait in the queue."""
        name = entry.request.policy
        if name is None:
            entry.use = FixedModel(entry.endpoint)
            return True
        if name not in self._parts.policies:
            self._without_policy.append(entry)
            return False
        on_order = partial(self._on_order, entry)
        pinned = entry.request.group is not None and entry.saved.resumes is None
        entry.use = self._parts.policies.reserve(name, entry.id, on_order, pinned=pinned)
        return True

    def _on_order(self, entry: Entry, order: PolicyOrder) -> None:
        """Carry out what an update of the policy says."""
        if order == "drop":
            self._group.create_task(self.stop(entry, "drop", "tree"))
        elif entry.status.state == "running":
            self._request_save(entry)

    def _request_save(self, entry: Entry) -> None:
        assert entry.switch is not None, "a rollout that runs has a switch"
        if entry.is_stopping:
            return
        entry.update(stop="park")
        entry.set_status(park_refusal=None)
        self._journal.save(entry)
        entry.switch.request_save()

    def _requeue(self, entry: Entry, resumes: str | None = None) -> None:
        entry.set_status(state="queued")
        entry.update(resumes=resumes or entry.saved.resumes, stop="none")
        self.store.save(entry.id, entry.dump())
        self._enqueue(entry)

    def _rerun(self, entry: Entry) -> None:
        """Queue a rollout from its begin. The leaves of its lost run do not count."""
        entry.set_status(state="queued", leaves=(), policy_versions=(), started_version=None)
        self._journal.record(entry, "rerun")
        self._enqueue(entry)

    def _start_next(self) -> None:
        slots = self._parts.slots
        while self._may_start and len(self.queue) and slots.take():
            entry = self.queue.pop()
            assert entry is not None, "a queue with a length has a next rollout"
            if not self._start(entry):
                self.queue.push(entry)
                slots.give_back()

    @property
    def _may_start(self) -> bool:
        return not self.is_draining and not self._journal.is_failing

    def _start(self, entry: Entry) -> bool:
        """Start a rollout, if its start can be recorded. Else it is as before."""
        saved, now = entry.saved, time.time()
        entry.switch, entry.is_saved = PauseSwitch(), False
        entry.switch.on_saved = partial(self._on_saved, entry)
        entry.switch.on_save_refused = partial(self._on_save_refused, entry)
        entry.spending = SpendingTracker(self._parts.settings.caps.budget(entry.request))
        entry.failure = None
        entry.update(attempts=(*entry.saved.attempts, new_rollout_id(entry.status.task)))
        count = len(entry.saved.attempts)
        fields: dict[str, Any] = {"state": "running", "started_at": now, "attempts": count}
        use = entry.use
        assert use is not None, "a rollout in the queue has its model"
        use.begin()
        if isinstance(use, PolicyUse):
            fields |= versions_after(entry, use.first.version)
            use.on_swap = partial(self._on_swap, entry)
        entry.set_status(**fields)
        if not self._journal.begin(entry, policy_version=entry.status.started_version):
            use.cancel_begin()
            entry.saved = saved
            return False
        self.running.add(entry.id)
        entry.task = self._group.create_task(self._run(entry, use), name=f"rollout {entry.id}")
        entry.task.add_done_callback(lambda _: self._release(entry, use))
        return True

    def _release(self, entry: Entry, use: ModelUse) -> None:
        """Free the slot. A task that was cancelled before its first step has run nothing."""
        use.close()
        entry.use = entry.task = entry.switch = None
        self.running.discard(entry.id)
        if entry.status.state == "running" and not self._is_closed:
            self._end(entry, outcome_of(entry.saved.stop))
        self.wake_all()
        self._parts.slots.give_back()

    async def _run(self, entry: Entry, use: ModelUse) -> None:
        fold = TreeFold()
        try:
            attempt = await attempt_of(entry, use, self._parts)
            result = await self._parts.runner.run(attempt, partial(self._on_event, entry, fold))
            self._finish(entry, result.record, result.tree)
        except asyncio.CancelledError:
            if entry.failure is not None:
                self._fail(entry, entry.failure)
            elif entry.is_saved:
                self._park(entry, resumes=entry.saved.attempts[-1])
            elif not self._is_closed:
                self._end(entry, outcome_of(entry.saved.stop))
                await self._clean(entry)
        except BenchFlowError as error:
            self._fail(entry, error)
        except Exception as error:
            _logger.exception("rollout %s", entry.id)
            cause = NodeError(boundary="internal", type=type(error).__name__, message=str(error))
            self._end(entry, "unscored", error=cause)

    def _on_event(self, entry: Entry, fold: TreeFold, event: Event) -> None:
        if isinstance(event, UsageReported):
            entry.spend(event)
        if type(event) not in _TREE_EVENTS:
            return
        fold.apply(event)
        if isinstance(event, StepFinished) and event.step.usage is not None:
            self.tokens.add(event.step.usage.output_tokens)
        if isinstance(event, NodeScored) and event.name == "reward":
            self._journal.add_event(entry, "leaf", leaf=leaf_score(fold.tree, event.node))

    def _on_swap(self, entry: Entry, version: str) -> None:
        entry.set_status(**versions_after(entry, version))
        self._journal.record(entry, "swapped", policy_version=version)

    def _on_saved(self, entry: Entry) -> None:
        entry.is_saved = True
        if entry.task is not None:
            entry.task.cancel()

    def _park(self, entry: Entry, resumes: str | None) -> None:
        entry.update(resumes=resumes, stop="none")
        entry.set_status(state="parked", park_refusal=None)
        if entry.use is not None:
            entry.use.close()
            entry.use = None
        self._journal.record(entry, "parked")

    def _finish_from_disk(self, entry: Entry) -> None:
        stored = StoredRollout(self._home / entry.saved.attempts[-1])
        assert stored.record is not None, "a finished rollout has its summary"
        self._finish(entry, stored.record, stored.tree)

    def _finish(self, entry: Entry, record: RolloutRecord, tree: RolloutTree) -> None:
        if record.rollout_id not in entry.saved.attempts:
            # Only the summary of an earlier attempt was missing.
            entry.update(attempts=(*entry.saved.attempts, record.rollout_id))
        outcome: Outcome = "unscored" if record.reward is None else "scored"
        scored: dict[str, Any] = {"reward": record.reward, "leaves": leaf_scores(tree)}
        self._end(entry, outcome, error=record.error, cause=record.cause, **scored)

    def _fail(self, entry: Entry, error: BenchFlowError) -> None:
        outcome: Outcome = "lost" if isinstance(error, ServerLostError) else "unscored"
        self._end(entry, outcome, error=node_error(error))

    def _end(
        self,
        entry: Entry,
        outcome: Outcome,
        *,
        reward: float | None = None,
        leaves: tuple[LeafScore, ...] = (),
        error: NodeError | None = None,
        cause: Cause | None = None,
    ) -> None:
        if entry.use is not None:
            entry.use.close()
        self.ended += 1
        if outcome != "scored":
            self.losses["client" if error is None else error.boundary] += 1
        entry.set_status(
            state="ended",
            outcome=outcome,
            ended_at=time.time(),
            reward=reward,
            leaves=leaves,
            error=error,
            cause=cause,
        )
        self._journal.record(entry, "ended", outcome=outcome)
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all that wait for the end of a rollout or of a group."""
        self.changed.set()
        self.changed = asyncio.Event()
