"""The limit of a model endpoint follows its answers."""

from benchflow_contracts import UpstreamAnswer
from benchflow_jobs.scheduling import (
    End,
    ModelLimit,
    ModelLimits,
    Schedule,
    Scheduler,
    Start,
    VariantPlan,
)

URL = "http://model/v1"


def running(slots: int, most: int) -> Scheduler:
    """Return a scheduler that runs `most` of `slots` slots."""
    schedule = Schedule([VariantPlan("v", endpoint=URL)])
    for _ in range(slots):
        schedule.add(0)
    scheduler = Scheduler(schedule, {"slots": most})
    assert len(scheduler.begin(0)) == min(slots, most)
    return scheduler


def answers(limits: ModelLimits, status: int, count: int, now: float = 0) -> list[object]:
    answer = UpstreamAnswer(URL, status)
    return [action for _ in range(count) for action in limits.note(answer, now)]


def test_an_endpoint_that_never_throttles_has_no_limit() -> None:
    scheduler = running(40, 30)
    answers(ModelLimits(scheduler), 200, 100)
    answers(ModelLimits(scheduler), 500, 100)
    assert scheduler.model_limits == {}


def test_a_429_shrinks_the_limit_and_clean_rounds_let_it_grow_again() -> None:
    scheduler, seen = running(40, 10), list[int]()
    limits = ModelLimits(scheduler, on_change=lambda _, limit: seen.append(limit))
    assert answers(limits, 429, 5, now=100) == []
    assert scheduler.model_limits == {URL: 8}
    # The rollouts over the limit continue, and their ends start nothing.
    ended = [scheduler.ended(index, 1, End(scored=True), 101) for index in range(2)]
    assert not any(isinstance(action, Start) for actions in ended for action in actions)
    assert scheduler.running_on(URL) == 8
    started = answers(limits, 200, 1000, now=102)
    assert started == [Start(10, 1), Start(11, 1)]
    assert (seen, scheduler.model_limits) == ([8, 9, 10], {URL: 10})


def test_the_limit_shrinks_at_most_once_in_15_seconds_and_as_the_endpoint_asks() -> None:
    limit = ModelLimit(100)
    limit.throttled(0)
    limit.throttled(14.9)
    assert limit.allowed == 80
    limit.throttled(15, retry_after=40)
    limit.throttled(54)
    assert limit.allowed == 64
    limit.throttled(55)
    assert limit.allowed == 51
    for now in range(1000, 9000, 100):
        limit.throttled(now)
    assert limit.allowed == 1


def test_a_round_that_used_little_of_the_limit_does_not_let_it_grow() -> None:
    limit = ModelLimit(10)
    for _ in range(100):
        limit.succeeded(7, 20)
    assert limit.limit == 10
    for _ in range(10):
        limit.succeeded(8, 20)
    assert limit.limit == 10.5


def test_a_small_limit_grows_although_its_rollouts_never_use_the_fraction() -> None:
    limit = ModelLimit(3.9)
    for _ in range(4):
        limit.succeeded(3, 20)
    assert limit.allowed == 4


def test_a_limit_that_people_set_stays() -> None:
    scheduler = running(40, 10)
    answers(ModelLimits(scheduler, {URL}), 429, 5)
    assert scheduler.model_limits == {}


def test_an_overloaded_endpoint_counts_as_a_429() -> None:
    for status in (503, 529):
        scheduler = running(40, 10)
        answers(ModelLimits(scheduler), status, 1)
        assert scheduler.model_limits == {URL: 8}
