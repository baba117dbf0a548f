"""The scheduler against a simple model, over random histories."""

from collections import Counter

from benchflow_jobs.scheduling import (
    Cancel,
    End,
    Finish,
    Latch,
    PauseJob,
    Policy,
    Resolve,
    Schedule,
    Scheduler,
    SlotState,
    Start,
    VariantPlan,
)
from benchflow_jobs.scheduling.scheduler import Action
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

VARIANTS = (
    VariantPlan("plain"),
    VariantPlan("big", {"slots": 1, "memory_mb": 400}),
    VariantPlan("chain", is_sequential=True),
    VariantPlan("served", endpoint="model"),
)
LATCHES = (
    Latch(),
    *(Latch("variant", variant.name) for variant in VARIANTS),
    Latch("endpoint", "model"),
)
ENDS = (
    End(scored=True),
    End(scored=False, fingerprint="lost", may_pass=True),
    End(scored=False, fingerprint="broken"),
    End(scored=False, fingerprint="other"),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.lists(st.integers(0, len(VARIANTS) - 1), max_size=12),
        prune=st.none() | st.integers(1, 3),
    )
    def begin(self, slots: list[int], prune: int | None) -> None:
        self.limits = {"slots": 3, "memory_mb": 800}
        schedule = Schedule(VARIANTS)
        for variant in slots:
            schedule.add(variant)
        policy = Policy(
            retries=1, pauses=(3,), max_attempts=3, break_variant_after=2, prune_after=prune
        )
        self.job = Scheduler(schedule, dict(self.limits), policy, model_limits={"model": 2})
        self.now = 0.0
        self.running: dict[int, int] = {}
        self.attempts = Counter[int]()
        self.resolved: set[int] = set()
        self.is_stopping = False
        self.finished: Finish | None = None
        self.carry_out(self.job.begin(self.now))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(index, attempt):
                    assert not self.is_stopping
                    assert index not in self.running
                    assert index not in self.resolved
                    assert attempt == self.attempts[index] + 1
                    assert not self.latched(index)
                    self.attempts[index] = attempt
                    self.running[index] = attempt
                case Resolve(index):
                    assert index not in self.running
                    assert index not in self.resolved
                    self.resolved.add(index)
                case Cancel(index, attempt):
                    assert self.running[index] == attempt
                case PauseJob(latch):
                    assert latch in self.job.latches
                case Finish():
                    assert not self.running
                    self.finished = action

    def latched(self, index: int) -> bool:
        variant = VARIANTS[self.job.schedule.variant_of(index)]
        holds = self.job.latches
        endpoint = Latch("endpoint", variant.endpoint or "")
        return bool(holds & {Latch(), Latch("variant", variant.name), endpoint})

    @rule(choice=st.integers(0, 99), end=st.sampled_from(ENDS))
    @precondition(lambda self: self.running)
    def an_attempt_ends(self, choice: int, end: End) -> None:
        index = sorted(self.running)[choice % len(self.running)]
        attempt = self.running.pop(index)
        self.carry_out(self.job.ended(index, attempt, end, self.now))
        assert self.job.ended(index, attempt, end, self.now) == []

    @rule(seconds=st.integers(1, 5))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.carry_out(self.job.tick(self.now))

    @rule(latch=st.sampled_from(LATCHES))
    def people_pause(self, latch: Latch) -> None:
        self.carry_out(self.job.pause(latch))

    @rule(latch=st.sampled_from(LATCHES))
    def people_resume(self, latch: Latch) -> None:
        self.carry_out(self.job.resume(latch, self.now))

    @rule(slots=st.integers(1, 5))
    def people_change_the_limit(self, slots: int) -> None:
        self.limits["slots"] = max(slots, len(self.running))
        self.carry_out(self.job.set_limits(self.now, {"slots": self.limits["slots"]}))

    @rule(choice=st.integers(0, 99))
    @precondition(lambda self: self.resolved)
    def people_requeue(self, choice: int) -> None:
        index = sorted(self.resolved)[choice % len(self.resolved)]
        if self.job.schedule.state_of(index) != SlotState.COMPLETED:
            self.resolved.discard(index)
        self.carry_out(self.job.requeue([index], self.now))

    @rule(variant=st.integers(0, len(VARIANTS) - 1))
    @precondition(lambda self: len(self.job.schedule) < 20)
    def people_extend(self, variant: int) -> None:
        self.carry_out(self.job.extend([], [variant], self.now))

    @rule()
    def people_drain(self) -> None:
        self.is_stopping = True
        self.carry_out(self.job.drain())

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "job"):
            return
        variants = [VARIANTS[self.job.schedule.variant_of(index)] for index in self.running]
        assert len(variants) <= max(self.limits["slots"], 0)
        assert sum(v.needs.get("memory_mb", 0) for v in variants) <= self.limits["memory_mb"]
        assert sum(v.name == "chain" for v in variants) <= 1
        assert sum(v.endpoint == "model" for v in variants) <= 2
        assert self.job.running == len(self.running)

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        # Without latches and with every attempt scored, each slot is resolved.
        for latch in LATCHES:
            self.carry_out(self.job.resume(latch, self.now))
        while self.running or (self.job.wake_at() is not None and not self.is_stopping):
            while self.running:
                index, attempt = self.running.popitem()
                self.carry_out(self.job.ended(index, attempt, ENDS[0], self.now))
            self.now += 10
            self.carry_out(self.job.tick(self.now))
        if not self.is_stopping and len(self.job.schedule):
            assert self.resolved == set(range(len(self.job.schedule)))
            assert self.job.schedule.unresolved == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
