"""The scheduler: what starts, what is tried again, and when it pauses or finishes."""

import pytest
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

SCORED = End(scored=True)
BROKEN = End(scored=False, fingerprint="AgentError: no such model", reason="no such model")
LOST = End(scored=False, fingerprint="SandboxLostError", may_pass=True, reason="engine restarted")
CUT = End(scored=False)


def scheduler(
    slots: int | list[int] = 3,
    *variants: VariantPlan,
    limits: dict[str, int] | None = None,
    policy: Policy | None = None,
    **more: dict[str, int],
) -> Scheduler:
    schedule = Schedule(variants or [VariantPlan("a")])
    for variant in [0] * slots if isinstance(slots, int) else slots:
        schedule.add(variant)
    return Scheduler(
        schedule, {"slots": 2} if limits is None else limits, policy or Policy(), **more
    )


def test_slots_start_in_schedule_order_up_to_the_limit() -> None:
    job = scheduler(3)
    assert job.begin(0) == [Start(0, 1), Start(1, 1)]
    assert job.ended(1, 1, SCORED, 1) == [Resolve(1, SlotState.COMPLETED), Start(2, 1)]
    assert job.ended(0, 1, SCORED, 2) == [Resolve(0, SlotState.COMPLETED)]
    assert job.ended(2, 1, SCORED, 3) == [
        Resolve(2, SlotState.COMPLETED),
        Finish("completed"),
    ]


def test_a_job_without_slots_is_complete() -> None:
    assert scheduler(0).begin(0) == [Finish("completed")]


def test_only_attempts_that_were_not_cut_short_count_against_the_cap() -> None:
    schedule = Schedule([VariantPlan("a")])
    schedule.add(0, attempts=10, cut_short=0)
    schedule.add(0, attempts=10, cut_short=1)
    job = Scheduler(schedule, {"slots": 2}, Policy(max_attempts=10))
    assert job.begin(0) == [Resolve(0, SlotState.FAILED), Start(1, 11)]
    assert Resolve(1, SlotState.FAILED) in job.ended(1, 11, LOST, 1)


def test_a_second_report_of_an_attempt_changes_nothing() -> None:
    job = scheduler(3)
    job.begin(0)
    job.ended(0, 1, SCORED, 1)
    assert job.ended(0, 1, BROKEN, 2) == []
    assert job.ended(2, 2, SCORED, 2) == []
    assert job.schedule.state_of(0) == SlotState.COMPLETED


def test_an_error_that_may_pass_is_tried_again_after_a_pause() -> None:
    job = scheduler(1, policy=Policy(retries=2, pauses=(2, 10)))
    job.begin(0)
    assert job.ended(0, 1, LOST, 5) == []
    assert job.wake_at() == 7
    assert job.tick(6.9) == []
    assert job.tick(7) == [Start(0, 2)]
    asks = End(scored=False, fingerprint="x", may_pass=True, retry_after=60)
    job.ended(0, 2, asks, 8)
    assert job.wake_at() == 68
    assert job.tick(68) == [Start(0, 3)]
    assert job.ended(0, 3, LOST, 70) == [Resolve(0, SlotState.FAILED), Finish("completed")]


def test_a_permanent_error_is_not_tried_again() -> None:
    job = scheduler(1)
    job.begin(0)
    assert job.ended(0, 1, BROKEN, 1) == [Resolve(0, SlotState.FAILED), Finish("completed")]


def test_a_resume_does_not_reset_the_cap_of_attempts() -> None:
    schedule = Schedule([VariantPlan("a")])
    schedule.add(0, attempts=4)
    schedule.add(0, attempts=3)
    job = Scheduler(schedule, {"slots": 2}, Policy(max_attempts=4, pauses=(0,)))
    assert job.begin(0) == [Resolve(0, SlotState.FAILED), Start(1, 4)]
    assert job.ended(1, 4, LOST, 1) == [Resolve(1, SlotState.FAILED), Finish("completed")]
    assert job.requeue([0, 1], 2) == [Start(0, 5), Start(1, 5)]


def test_resources_of_a_variant_bound_what_runs() -> None:
    heavy = VariantPlan("heavy", {"slots": 1, "memory_mb": 600})
    light = VariantPlan("light", {"slots": 1, "memory_mb": 100})
    job = scheduler([0, 0, 1], heavy, light, limits={"slots": 3, "memory_mb": 1000})
    # The second heavy slot does not fit; the light one behind it does.
    assert job.begin(0) == [Start(0, 1), Start(2, 1)]
    assert job.ended(0, 1, SCORED, 1)[-1] == Start(1, 1)


def test_rollouts_of_an_endpoint_stay_below_its_limit() -> None:
    served = VariantPlan("a", endpoint="http://model")
    job = scheduler(4, served, limits={}, model_limits={"http://model": 2})
    assert job.begin(0) == [Start(0, 1), Start(1, 1)]
    assert job.set_limits(1, model_limits={"http://model": 3}) == [Start(2, 1)]


def test_slots_of_a_sequential_variant_run_one_after_the_other() -> None:
    chain = VariantPlan("a", is_sequential=True)
    job = scheduler(3, chain, policy=Policy(pauses=(5,)))
    assert job.begin(0) == [Start(0, 1)]
    assert job.ended(0, 1, LOST, 1) == []
    assert job.tick(6) == [Start(0, 2)]
    assert job.ended(0, 2, SCORED, 7)[-1] == Start(1, 1)


def test_a_rollout_over_its_deadline_is_cancelled_once() -> None:
    job = scheduler(1, policy=Policy(deadline_sec=10))
    job.begin(100)
    assert job.wake_at() == 110
    assert job.tick(110) == [Cancel(0, 1, "the rollout took longer than 10 s", is_late=True)]
    assert job.tick(111) == []


def test_the_deadline_of_a_rollout_that_is_held_stands_still() -> None:
    job = scheduler(1, policy=Policy(deadline_sec=10))
    job.begin(100)
    assert job.hold(0, 104) == job.hold(0, 105) == []
    assert job.wake_at() is None
    assert job.tick(200) == []
    assert job.release(0, 300) == job.release(0, 301) == []
    assert job.wake_at() == 306
    assert job.hold(1, 302) == job.release(1, 303) == []
    assert job.tick(306) == [Cancel(0, 1, "the rollout took longer than 10 s", is_late=True)]


def test_a_saved_attempt_is_ended_and_does_not_count_against_its_slot() -> None:
    job = scheduler(1, policy=Policy(max_attempts=1, retries=0))
    job.begin(0)
    job.pause(Latch())
    assert job.interrupt(0, "saved") == [Cancel(0, 1, "saved")]
    assert job.ended(0, 1, CUT, 1) == []
    assert job.interrupt(0, "saved") == []
    assert job.resume(Latch(), 2) == [Start(0, 2)]
    job.interrupt(0, "saved")
    assert job.ended(0, 2, BROKEN, 3)[0] == Resolve(0, SlotState.FAILED)


def test_the_same_permanent_error_pauses_its_variant_and_says_why() -> None:
    job = scheduler(
        [0, 1] * 4, VariantPlan("a"), VariantPlan("b"), policy=Policy(break_variant_after=2)
    )
    job.begin(0)
    job.ended(0, 1, BROKEN, 1)
    job.ended(1, 1, SCORED, 1)
    paused = job.ended(2, 1, BROKEN, 2)
    latch = Latch("variant", "a")
    assert PauseJob(latch, "2 times running: no such model") in paused
    # Only the other variant continues.
    assert Start(5, 1) in paused
    assert job.latches == {latch}
    resumed = job.resume(latch, 3)
    assert resumed == []
    assert job.ended(3, 1, SCORED, 4)[-1] == Start(4, 1)


def test_a_score_between_two_errors_keeps_the_breaker_closed() -> None:
    job = scheduler(6, limits={"slots": 1}, policy=Policy(break_variant_after=2))
    job.begin(0)
    for index, end in enumerate([BROKEN, SCORED, BROKEN, SCORED]):
        actions = job.ended(index, 1, end, index)
        assert not any(isinstance(action, PauseJob) for action in actions)


def test_a_variant_that_only_fails_is_given_up() -> None:
    job = scheduler(
        [0, 1, 0, 0],
        VariantPlan("a"),
        VariantPlan("b"),
        limits={"slots": 1},
        policy=Policy(prune_after=1),
    )
    job.begin(0)
    assert job.ended(0, 1, BROKEN, 1) == [
        Resolve(0, SlotState.FAILED),
        Resolve(2, SlotState.PRUNED),
        Resolve(3, SlotState.PRUNED),
        Start(1, 1),
    ]


def test_a_pause_lets_what_runs_end_and_starts_nothing() -> None:
    job = scheduler(3)
    job.begin(0)
    job.pause(Latch())
    assert job.ended(0, 1, SCORED, 1) == [Resolve(0, SlotState.COMPLETED)]
    assert job.ended(1, 1, SCORED, 2) == [Resolve(1, SlotState.COMPLETED)]
    assert job.resume(Latch(), 3) == [Start(2, 1)]


def test_a_drain_ends_what_runs_and_closes_the_run() -> None:
    job = scheduler(3)
    job.begin(0)
    assert job.drain() == []
    job.ended(0, 1, SCORED, 1)
    assert job.ended(1, 1, SCORED, 2) == [Resolve(1, SlotState.COMPLETED), Finish("drained")]


def test_a_stop_cancels_what_runs_and_leaves_it_for_the_next_run() -> None:
    job = scheduler(3)
    job.begin(0)
    assert job.stop("interrupted") == [
        Cancel(0, 1, "interrupted"),
        Cancel(1, 1, "interrupted"),
    ]
    assert job.ended(0, 1, CUT, 1) == []
    assert job.ended(1, 1, SCORED, 1) == [
        Resolve(1, SlotState.COMPLETED),
        Finish("stopped", "interrupted"),
    ]
    assert job.schedule.state_of(0) == SlotState.WAITING


def test_an_error_that_every_rollout_would_have_stops_the_job() -> None:
    job = scheduler(3)
    job.begin(0)
    quota = End(scored=False, fingerprint="QuotaError", stops_job=True, reason="no credit")
    assert job.ended(0, 1, quota, 1) == [Resolve(0, SlotState.FAILED)]
    assert job.ended(1, 1, SCORED, 2)[-1] == Finish("stopped", "no credit")


def test_a_job_is_extended_while_it_runs() -> None:
    job = scheduler(1)
    job.begin(0)
    assert job.extend([VariantPlan("b")], [0, 1], 1) == [Start(1, 1)]
    assert job.ended(0, 1, SCORED, 2)[-1] == Start(2, 1)


@pytest.mark.parametrize("slots", [1, 1000])
def test_a_waiting_slot_takes_less_than_100_bytes(slots: int) -> None:
    schedule = Schedule([VariantPlan("a")])
    for _ in range(slots):
        schedule.add(0)
    arrays = (schedule._variant, schedule._state, schedule._attempts, *schedule._waiting)
    assert sum(len(part) * part.itemsize for part in arrays) / slots < 100
