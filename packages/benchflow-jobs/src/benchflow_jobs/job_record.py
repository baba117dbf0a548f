"""The record of a running job: what the driver reports, as rows of the database."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchflow_contracts import (
    Cause,
    Completion,
    Dispatch,
    Event,
    EvidenceStore,
    RolloutRecord,
    StoreError,
)
from benchflow_store import StoredRollout
from benchflow_store.database import (
    ArtifactRef,
    Commit,
    EventRow,
    JobStatus,
    JobWriter,
    Metric,
    PlannedSlot,
    RunControl,
    SlotStatus,
    record_metrics,
)

from .attempt_evidence import fetch_files, store_files
from .budget import Budget
from .executor import end_of
from .scheduling import Latch, SlotState

_STATUS: dict[SlotState, SlotStatus] = {
    SlotState.FAILED: "failed",
    SlotState.PRUNED: "skipped_pruned",
}


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What holds back the rollouts of a job now."""

    resources: Mapping[str, int]
    """What may be in use at once, by resource: `slots`, `builds` and `memory_mb`."""
    endpoints: Mapping[str, int]
    """Rollouts that may run at once, by the URL of a model endpoint."""
    throttled: frozenset[str]
    """Endpoints whose limit follows from their own answers, such as 429."""
    pauses: Mapping[str, str]
    """The reason of each pause, by its scope in words, such as `the job`."""
    ending: str
    """Why nothing more starts in this run; empty if more may start."""
    budget: Budget
    """The budget, with what was used so far."""


class JobListener(Protocol):
    """Follows a job. Callbacks run on the event loop and must not block."""

    def planned(self, job: str, slots: Sequence[PlannedSlot], rewards: Mapping[int, float]) -> None:
        """The job called `job` is about to run.

        `rewards` are those of the slots that an earlier run finished, by index.
        """
        ...

    def limited(self, limits: JobLimits) -> None:
        """These limits hold: called before the first rollout starts, and after each change."""
        ...

    def extended(self, total: int) -> None:
        """The job has `total` slots now."""
        ...

    def started(self, slot: PlannedSlot) -> Callable[[Event], None]:
        """A rollout starts, maybe once more; return the receiver of its events."""
        ...

    def attempted(self, slot: PlannedSlot, completion: Completion) -> None:
        """An attempt has ended, and its completion is durable. The slot may run again."""
        ...

    def finished(self, slot: PlannedSlot, record: RolloutRecord) -> None:
        """A rollout is over, and its record is durable. The slot does not run again."""
        ...


def _ignore(*what: object) -> None:
    del what


@dataclass(slots=True)
class DatabaseRecord:
    """A `JobRecord` in the job's database, which also informs a listener.

    It is a `JobStore`, too.
    """

    writer: JobWriter
    directory: Path
    slots: Sequence[PlannedSlot]
    listener: JobListener | None = None
    on_commit: Callable[[], None] = lambda: None
    """Called after each write."""
    budget: Budget = field(default_factory=Budget)
    running_cost: Callable[[Collection[str]], float] = lambda _rollouts: 0.0
    """Returns what the sandboxes of running rollouts have cost so far, in US dollars."""
    running_count: Callable[[], int] = lambda: 0
    """Returns how many attempts the scheduler counts as running."""
    on_spent: Callable[[str], None] = _ignore
    """Called with the reason when the budget is used up."""
    on_pause: Callable[[Latch, str], None] = _ignore
    """Called with the reason when a circuit breaker has paused something."""
    on_record: Callable[[str, RolloutRecord], None] = _ignore
    """Called with the variant and the record of an attempt, when the record is durable."""
    evidence: EvidenceStore | None = None
    """Gets the main files of scored rollouts."""
    _receivers: dict[str, Callable[[Event], None]] = field(
        default_factory=dict[str, Callable[[Event], None]]
    )
    _running: set[str] = field(default_factory=set[str])
    """The rollouts of the attempts that run."""
    _control: RunControl = field(default_factory=RunControl)
    _model_limits: dict[str, int] = field(default_factory=dict[str, int])
    _newest: dict[int, RolloutRecord] = field(default_factory=dict[int, RolloutRecord])
    """The last record of each slot that may run again."""

    @property
    def epoch(self) -> int:
        """The number of this run of the job."""
        return self.writer.epoch

    async def start(self, dispatch: Dispatch) -> None:
        """Record that an attempt runs."""
        await self.writer.start(dispatch, started=time.time())
        self._running.add(dispatch.rollout)
        if self.listener is not None:
            self._receivers[dispatch.rollout] = self.listener.started(self.slots[dispatch.index])

    def receive(self, dispatch: Dispatch, event: Event) -> None:
        """Give an event of a rollout to the listener."""
        self._receivers.get(dispatch.rollout, _ignore)(event)

    async def commit(self, completion: Completion) -> None:
        """Record how an attempt ended, with its metrics."""
        self._receivers.pop(completion.rollout, None)
        self._running.discard(completion.rollout)
        if completion.record is None:
            completion = with_record_on_disk(completion, self.directory)
        await self.writer.commit(await with_files(completion, self.evidence, self.directory))
        if completion.record is not None:
            record = RolloutRecord.model_validate(completion.record)
            self._newest[completion.index] = record
            self.on_record(self.slots[completion.index].variant, record)
        control = self._control
        limits = (control.model_limits, control.cost_limit_usd)
        if limits != (self._model_limits, self.budget.cost_usd):
            await self._write_control(self._control)
        self.budget.add_attempt(completion.measured)
        if self.listener is not None:
            self.listener.attempted(self.slots[completion.index], completion)
        self.check_budget(ending=1)
        self.on_commit()

    def check_budget(self, ending: int = 0) -> None:
        """Call `on_spent` if no further attempt may start.

        Attempts that run count, too. `ending` of them have ended, and hold their slots until now.
        """
        cost = self.running_cost(self._running)
        if reason := self.budget.spent(self.running_count() - ending, cost):
            self.on_spent(reason)

    async def close(self) -> None:
        """Release the database. Repeatable."""
        await self.writer.close()

    async def resolve(self, index: int, state: SlotState) -> None:
        """Record that a slot does not run again. A commit has recorded that it is completed."""
        if state in _STATUS:
            await self.writer.resolve([index], _STATUS[state])
        record = self._newest.pop(index, None)
        if self.listener is not None and record is not None:
            self.listener.finished(self.slots[index], record)
        self.on_commit()

    async def pause(self, latch: Latch, reason: str) -> None:
        """Record a pause that a circuit breaker made."""
        pause = {"scope": latch.scope, "name": latch.name, "reason": reason, "by": "breaker"}
        await self.set_status("paused", pause=pause)
        self.on_pause(latch, reason)

    async def set_status(
        self,
        status: JobStatus,
        *,
        pause: Mapping[str, object] | None = None,
        stopped: str | None = None,
    ) -> None:
        """Replace the observable state of the job."""
        await self._write_control(RunControl(status=status, pause=pause, stopped=stopped))
        self.on_commit()

    def note_model_limit(self, url: str, limit: int | None) -> None:
        """Show the limit that an endpoint's answers set, from the next commit on."""
        if limit is None:
            self._model_limits.pop(url, None)
        else:
            self._model_limits[url] = limit

    @property
    def throttled(self) -> frozenset[str]:
        """The endpoints whose limit follows from their answers."""
        return frozenset(self._model_limits)

    async def _write_control(self, control: RunControl) -> None:
        now = {
            "updated": time.time(),
            "model_limits": dict(self._model_limits),
            "cost_limit_usd": self.budget.cost_usd,
        }
        self._control = control.model_copy(update=now)
        await self.writer.set_control(self._control)


async def with_files(
    completion: Completion, evidence: EvidenceStore | None, directory: Path
) -> Commit:
    """Return what the database keeps of an attempt, after its files are stored.

    The files of a rollout on another host are fetched into its directory here. Of other rollouts,
    only a scored one is sure to count. Without an evidence store, no file is stored.

    Raises:
        StoreError: An artifact cannot be stored or fetched.
    """
    commit, files = as_commit(completion), list(completion.files)
    if evidence is None:
        return commit
    if files:
        await fetch_files(evidence, files, directory / completion.rollout)
    elif completion.status == "scored":
        files = await store_files(evidence, directory / completion.rollout)
    return replace(commit, refs=[ArtifactRef(f.role, f.sha256, f.size) for f in files])


def as_commit(completion: Completion) -> Commit:
    """Return what the database keeps of an attempt that has ended."""
    metrics: list[Metric] = []
    if completion.record is not None:
        metrics += record_metrics(RolloutRecord.model_validate(completion.record))
    metrics += [Metric(name, value, measured=True) for name, value in completion.measured.items()]
    return Commit(
        completion,
        started=completion.started_at,
        finished=completion.finished_at or time.time(),
        metrics=metrics,
        events=[EventRow(each.kind, each.data, each.ts) for each in completion.events],
        fingerprint=end_of(completion).fingerprint,
    )


def with_record_on_disk(completion: Completion, directory: Path) -> Completion:
    """Return the completion with the record that its rollout left in the job's directory."""
    with suppress(StoreError):
        record = StoredRollout(directory / completion.rollout).record
        if record is not None and not record.is_final:
            if completion.error is not None and record.error is None:
                cause = Cause(by=completion.error.caused_by, what=completion.error.message)
                record = record.model_copy(update={"error": completion.error, "cause": cause})
            dump = record.model_dump(mode="json")
            return completion.model_copy(update={"record": dump, "error": record.error})
    return completion
