"""The record of a job in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchflow_contracts.errors import StoreError
from benchflow_contracts.job import Completion, Dispatch

from .faults import FakeFaults, Fault


@dataclass(frozen=True, slots=True)
class FakeAttempt:
    """An attempt in the record of a fake job."""

    index: int
    attempt: int
    epoch: int
    status: str
    """That of its completion, `running`, or `interrupted` if its driver ended before."""
    counts: bool = False

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return the order of attempts: the greatest one counts."""
        return self.status == "scored", self.attempt, self.epoch


class FakeJob:
    """A job with slots, whose record outlives its stores. A test may read `attempts`."""

    def __init__(self, slots: Iterable[str]) -> None:
        self.slots = list(slots)
        self.attempts: list[FakeAttempt] = []
        self.epoch = 0

    def begin(self, *, fail_on: Mapping[str, Fault] | None = None) -> "FakeJobStore":
        """Begin a run of the job. Earlier stores write nothing more."""
        self.epoch += 1
        for place, each in enumerate(self.attempts):
            if each.status == "running":
                self.attempts[place] = replace(each, status="interrupted")
        return FakeJobStore(self, self.epoch, FakeFaults.of(fail_on, None))


class FakeJobStore:
    """Writes the record of a `FakeJob`. Faults are keyed by `start` and `commit`."""

    def __init__(self, job: FakeJob, epoch: int, faults: FakeFaults) -> None:
        self.faults = faults
        self.epoch = epoch
        self._job = job

    async def start(self, dispatch: Dispatch) -> None:
        """Record that an attempt runs."""
        self._check("start", dispatch.index, dispatch.slot)
        made = FakeAttempt(dispatch.index, dispatch.attempt, dispatch.epoch, "running")
        self._job.attempts.append(made)

    async def commit(self, completion: Completion) -> None:
        """Record how an attempt ended."""
        self._check("commit", completion.index, completion.slot)
        key = completion.index, completion.attempt, completion.epoch
        attempts = self._job.attempts
        made = FakeAttempt(*key, completion.status)
        running = FakeAttempt(*key, "running")
        if running in attempts:
            attempts.remove(running)
        for place, each in enumerate(attempts):
            if each.index == made.index and each.counts:
                if each.status == "scored" or made.rank <= each.rank:
                    attempts.append(made)
                    return
                attempts[place] = replace(each, counts=False)
        attempts.append(replace(made, counts=True))

    async def close(self) -> None:
        """Do nothing: each write is in the record when it returns."""

    def _check(self, operation: str, index: int, slot: str) -> None:
        self.faults.raise_fault(operation)
        if self.epoch != self._job.epoch:
            raise StoreError(f"a later run of the job has begun after epoch {self.epoch}")
        if index >= len(self._job.slots) or self._job.slots[index] != slot:
            raise StoreError(f"the schedule has no slot {slot!r} at {index}")
