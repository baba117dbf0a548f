"""The scheduler: events in, actions out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from .breaker import Breaker
from .schedule import Schedule, SlotState, VariantPlan


@dataclass(frozen=True, slots=True)
class Policy:
    """When the scheduler tries again, gives up and pauses."""

    retries: int = 2
    """More attempts of a slot in this run, after an error that may pass."""
    pauses: tuple[float, ...] = (2, 10, 30)
    """Seconds before each of them; the last one holds for all further ones."""
    max_attempts: int = 10
    """Attempts of a slot in all runs of the job together, without those that were cut short."""
    deadline_sec: float | None = None
    """The longest time of a rollout."""
    break_variant_after: int = 5
    """Rollouts of a variant that end one after the other with one permanent error."""
    break_job_after: int = 10
    """Rollouts of the job that do so."""
    prune_after: int | None = None
    """Failed slots of a variant one after the other, after which the variant is given up."""


class End(NamedTuple):
    """How an attempt ended."""

    scored: bool
    fingerprint: str | None = None
    """The same for the same error; `None` without an error."""
    may_pass: bool = False
    """Whether the next attempt may succeed, because the host or the provider failed."""
    retry_after: float = 0
    """Seconds that the provider asks to wait."""
    stops_job: bool = False
    """Whether every other rollout would fail in the same way."""
    reason: str = ""
    """The error, for people."""


class Latch(NamedTuple):
    """A pause of the job, of one variant or of one model endpoint."""

    scope: Literal["job", "variant", "endpoint"] = "job"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Start an attempt."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a running attempt."""

    index: int
    attempt: int
    reason: str
    is_late: bool = False
    """Whether the attempt took too long, which is its own failure."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Record that a slot does not run again."""

    index: int
    state: SlotState


@dataclass(frozen=True, slots=True)
class PauseJob:
    """A circuit breaker has opened: record the pause and tell people why."""

    latch: Latch
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs, and nothing will: `completed`, or why slots are left."""

    status: Literal["completed", "drained", "stopped", "paused"]
    reason: str = ""


Action = Start | Cancel | Resolve | PauseJob | Finish


@dataclass(slots=True)
class _Running:
    attempt: int
    needs: Mapping[str, int]
    endpoint: str | None
    deadline: float | None
    is_saved: bool = False
    """Whether the attempt ended early, and a later attempt continues it."""
    left: float | None = None
    """The seconds to the deadline of an attempt that is held."""


@dataclass(slots=True)
class _Variant:
    breaker: Breaker
    failures: int = 0
    running: int = 0


@dataclass(slots=True)
class Scheduler:
    """The state of one run of a job.

    Each method is one event. It takes the time in monotonic seconds where that matters, and
    returns what the driver has to do, in order. Only one slot of a sequential variant runs at a
    time, and its slots keep their order.
    """

    schedule: Schedule
    limits: dict[str, int]
    """What all workers have, by resource. A resource without a limit is unlimited."""
    policy: Policy = Policy()
    model_limits: dict[str, int] = field(default_factory=dict[str, int])
    """Rollouts that may run at once, by model endpoint."""
    _running: dict[int, _Running] = field(default_factory=dict[int, _Running])
    _used: dict[str, int] = field(default_factory=dict[str, int])
    _on_endpoint: dict[str, int] = field(default_factory=dict[str, int])
    _variants: list[_Variant] = field(default_factory=list[_Variant])
    _latches: set[Latch] = field(default_factory=set[Latch])
    _delayed: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _retries: dict[int, int] = field(default_factory=dict[int, int])
    _granted: dict[int, int] = field(default_factory=dict[int, int])
    """Attempts beyond the cap, by slots that were requeued."""
    _breaker: Breaker = field(init=False)
    _ending: Finish | None = None

    def __post_init__(self) -> None:
        self._breaker = Breaker(self.policy.break_job_after)
        self._know_variants()

    def begin(self, now: float) -> list[Action]:
        """Begin: give up slots without an attempt left, and start what fits."""
        actions: list[Action] = []
        for variant in range(len(self.schedule.variants)):
            for index in list(self.schedule.waiting_of(variant)):
                if not self._has_attempt(index):
                    actions += self._resolve(index, SlotState.FAILED)
        return actions + self._proceed(now)

    def ended(self, index: int, attempt: int, end: End, now: float) -> list[Action]:
        """An attempt has ended. A second report of one attempt has no effect."""
        running = self._running.get(index)
        if running is None or running.attempt != attempt:
            return []
        self._release(index)
        if running.is_saved and not end.scored and end.fingerprint is None:
            self.schedule.repeat(index)
            return self._proceed(now)
        actions = self._after(index, end, now)
        return actions + self._proceed(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for index, running in self._running.items():
            if running.deadline is not None and running.deadline <= now:
                running.deadline = None
                reason = f"the rollout took longer than {self.policy.deadline_sec:g} s"
                actions.append(Cancel(index, running.attempt, reason, is_late=True))
        return actions + self._proceed(now)

    def wake_at(self) -> float | None:
        """Return when the next `tick` is due, or `None`."""
        times = [r.deadline for r in self._running.values() if r.deadline is not None]
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def pause(self, latch: Latch) -> list[Action]:
        """Start nothing more in this scope. What runs continues."""
        self._latches.add(latch)
        return []

    def resume(self, latch: Latch, now: float) -> list[Action]:
        """Open a latch again, and close its circuit breaker."""
        self._latches.discard(latch)
        if latch.scope == "job":
            self._breaker.reset()
        for number, variant in enumerate(self.schedule.variants):
            if latch.scope == "job" or latch == Latch("variant", variant.name):
                self._variants[number].breaker.reset()
        return self._proceed(now)

    def hold(self, index: int, now: float) -> list[Action]:
        """Stop the time of a running attempt."""
        running = self._running.get(index)
        if running is not None and running.deadline is not None:
            running.left, running.deadline = running.deadline - now, None
        return []

    def release(self, index: int, now: float) -> list[Action]:
        """Let the time of a held attempt continue."""
        running = self._running.get(index)
        if running is not None and running.left is not None:
            running.deadline, running.left = now + running.left, None
        return []

    def interrupt(self, index: int, reason: str) -> list[Action]:
        """End a running attempt that was saved. Its slot waits for another attempt."""
        running = self._running.get(index)
        if running is None:
            return []
        running.is_saved = True
        return [Cancel(index, running.attempt, reason)]

    def drain(self, reason: str = "") -> list[Action]:
        """Start nothing more in this run of the job; finish when nothing runs."""
        self._ending = self._ending or Finish("drained", reason)
        return self._finish()

    def stop(self, reason: str) -> list[Action]:
        """Cancel what runs, and finish."""
        self._ending = Finish("stopped", reason)
        running = self._running.items()
        return [*(Cancel(i, r.attempt, reason) for i, r in running), *self._finish()]

    def set_limits(
        self,
        now: float,
        limits: Mapping[str, int] | None = None,
        model_limits: Mapping[str, int] | None = None,
    ) -> list[Action]:
        """Change limits. What runs over a lower one continues."""
        self.limits.update(limits or {})
        self.model_limits.update(model_limits or {})
        return self._proceed(now)

    def requeue(self, indexes: Iterable[int], now: float) -> list[Action]:
        """Give each failed or pruned slot one more attempt, also beyond the cap."""
        for index in indexes:
            if self.schedule.state_of(index) in {SlotState.FAILED, SlotState.PRUNED}:
                self._granted[index] = self.schedule.tries_of(index) + 1
                self.schedule.rewind(index)
        return self._proceed(now)

    def extend(
        self, variants: Sequence[VariantPlan], slots: Sequence[int], now: float
    ) -> list[Action]:
        """Add variants, and then slots by the numbers of their variants."""
        for variant in variants:
            self.schedule.add_variant(variant)
        self._know_variants()
        for number in slots:
            self.schedule.add(number)
        return self._proceed(now)

    @property
    def running(self) -> int:
        """The number of running attempts."""
        return len(self._running)

    def running_on(self, endpoint: str) -> int:
        """Return the number of running attempts of a model endpoint."""
        return self._on_endpoint.get(endpoint, 0)

    @property
    def latches(self) -> frozenset[Latch]:
        """The latches that hold now."""
        return frozenset(self._latches)

    def _know_variants(self) -> None:
        missing = len(self.schedule.variants) - len(self._variants)
        after = self.policy.break_variant_after
        self._variants += [_Variant(Breaker(after)) for _ in range(missing)]

    def _after(self, index: int, end: End, now: float) -> list[Action]:
        variant = self._variants[self.schedule.variant_of(index)]
        if end.scored:
            variant.failures = 0
            self._breaker.reset()
            variant.breaker.reset()
            return self._resolve(index, SlotState.COMPLETED)
        if end.stops_job:
            self._ending = self._ending or Finish("stopped", end.reason)
        if self._ending is not None and not end.may_pass and end.fingerprint is None:
            # The driver cut the attempt short: the next run of the job repeats it.
            self.schedule.rewind(index)
            return []
        if end.may_pass and self._delay(index, end, now):
            return []
        actions = self._resolve(index, SlotState.FAILED)
        variant.failures += 1
        return actions + self._trip(index, end) + self._prune(index)

    def _delay(self, index: int, end: End, now: float) -> bool:
        """Plan one more attempt, if one is left."""
        done = self._retries.get(index, 0)
        if done >= self.policy.retries or not self._has_attempt(index):
            return False
        self._retries[index] = done + 1
        pauses = self.policy.pauses or (0.0,)
        pause = max(pauses[min(done, len(pauses) - 1)], end.retry_after)
        self.schedule.put(index, SlotState.DELAYED)
        heappush(self._delayed, (now + pause, index))
        return True

    def _trip(self, index: int, end: End) -> list[Action]:
        if end.may_pass or end.fingerprint is None:
            return []
        number = self.schedule.variant_of(index)
        name = self.schedule.variants[number].name
        scopes = (
            (Latch(), self._breaker),
            (Latch("variant", name), self._variants[number].breaker),
        )
        actions: list[Action] = []
        for latch, breaker in scopes:
            if breaker.count(end.fingerprint) and latch not in self._latches:
                self._latches.add(latch)
                actions.append(PauseJob(latch, f"{breaker.after} times running: {end.reason}"))
        return actions

    def _prune(self, index: int) -> list[Action]:
        number = self.schedule.variant_of(index)
        after = self.policy.prune_after
        if after is None or self._variants[number].failures < after:
            return []
        waiting = list(self.schedule.waiting_of(number))
        return [a for i in waiting for a in self._resolve(i, SlotState.PRUNED)]

    def _resolve(self, index: int, state: SlotState) -> list[Action]:
        self.schedule.put(index, state)
        return [Resolve(index, state)]

    def _has_attempt(self, index: int) -> bool:
        most = max(self.policy.max_attempts, self._granted.get(index, 0))
        return self.schedule.tries_of(index) < most

    def _release(self, index: int) -> None:
        running = self._running.pop(index)
        for name, amount in running.needs.items():
            self._used[name] -= amount
        if running.endpoint is not None:
            self._on_endpoint[running.endpoint] -= 1
        self._variants[self.schedule.variant_of(index)].running -= 1

    def _proceed(self, now: float) -> list[Action]:
        while self._delayed and self._delayed[0][0] <= now:
            index = heappop(self._delayed)[1]
            if self.schedule.state_of(index) == SlotState.DELAYED:
                self.schedule.rewind(index)
        actions: list[Action] = []
        while (chosen := self._choose()) is not None:
            actions.append(self._start(chosen, now))
        return actions + self._finish()

    def _choose(self) -> int | None:
        """Return the first slot of the schedule that may start and has what it needs."""
        if self._ending is not None or Latch() in self._latches:
            return None
        may = (n for n in range(len(self._variants)) if self._may_start(n))
        waiting = (self.schedule.first_waiting(number) for number in may)
        return min((index for index in waiting if index is not None), default=None)

    def _may_start(self, number: int) -> bool:
        variant = self.schedule.variants[number]
        if variant.is_sequential and (self._variants[number].running or self._has_delayed(number)):
            return False
        endpoint = variant.endpoint
        if Latch("variant", variant.name) in self._latches:
            return False
        if endpoint is not None:
            if Latch("endpoint", endpoint) in self._latches:
                return False
            most = self.model_limits.get(endpoint)
            if most is not None and self._on_endpoint.get(endpoint, 0) >= most:
                return False
        limits, used = self.limits, self._used
        return all(
            name not in limits or used.get(name, 0) + amount <= limits[name]
            for name, amount in variant.needs.items()
        )

    def _has_delayed(self, number: int) -> bool:
        return any(self.schedule.variant_of(index) == number for _, index in self._delayed)

    def _start(self, index: int, now: float) -> Start:
        number = self.schedule.variant_of(index)
        variant = self.schedule.variants[number]
        attempt = self.schedule.begin(index)
        limit = self.policy.deadline_sec
        deadline = None if limit is None else now + limit
        self._running[index] = _Running(attempt, variant.needs, variant.endpoint, deadline)
        for name, amount in variant.needs.items():
            self._used[name] = self._used.get(name, 0) + amount
        if variant.endpoint is not None:
            count = self._on_endpoint.get(variant.endpoint, 0)
            self._on_endpoint[variant.endpoint] = count + 1
        self._variants[number].running += 1
        return Start(index, attempt)

    def _finish(self) -> list[Action]:
        if self._running:
            return []
        if not self.schedule.unresolved:
            return [Finish("completed")]
        return [] if self._ending is None else [self._ending]
