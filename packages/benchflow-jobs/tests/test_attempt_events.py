"""The record of a job keeps the small fields of a rollout's events, up to a limit."""

import pytest
from benchflow_contracts import (
    Branched,
    BranchRecord,
    Completion,
    Event,
    NodeError,
    NodeFailed,
    NodeScored,
    PhaseEntered,
    RolloutFinished,
    RolloutStarted,
    VerifyResult,
    WorldClosed,
)
from benchflow_jobs.attempt_events import MOST_EVENTS, OMITTED, events_of

BIG = "\u0001" * 100_000
STARTED = RolloutStarted(seq=0, ts=1, rollout_id="r", task_id="t", root="n0", meta={"x": BIG})
FINISHED = RolloutFinished(seq=9, ts=9, status="completed")


def test_large_fields_and_other_kinds_are_left_out() -> None:
    error = NodeError(boundary="agent", type=BIG, message=BIG, hint=BIG)
    log: list[Event] = [
        STARTED,
        WorldClosed(seq=1, ts=2, node="n0"),
        NodeFailed(seq=2, ts=3, node="n1", error=error),
        Branched(
            seq=3,
            ts=4,
            node="n0",
            record=BranchRecord(policy=BIG, fidelity="live", reason=BIG, children=2),
        ),
        NodeScored(
            seq=4, ts=5, node="n0", name=BIG, result=VerifyResult(reward=1, meta={"m": BIG})
        ),
        FINISHED,
    ]
    events = events_of(log)
    kinds = ["rollout_started", "node_failed", "branched", "node_scored", "rollout_finished"]
    assert [event.kind for event in events] == kinds
    assert all(len(event.model_dump_json()) < 4096 for event in events)
    assert events[0].data == {"task": "t", "root": "n0"}
    assert (events[3].data["reward"], events[3].data["space"]) == (1, "output")


@pytest.mark.parametrize("count", [MOST_EVENTS - 2, MOST_EVENTS - 1, 1000])
def test_a_long_rollout_keeps_its_first_events_its_end_and_a_count(count: int) -> None:
    phases = [PhaseEntered(seq=n, ts=n, node=f"n{n}", phase="execute") for n in range(count)]
    events = events_of([STARTED, *phases, FINISHED])
    omitted = max(0, count + 2 - MOST_EVENTS)
    assert len(events) == min(count + 2, MOST_EVENTS) + bool(omitted)
    kept = events[: MOST_EVENTS if omitted else None]
    assert kept[-1].kind == "rollout_finished"
    assert [each.data["node"] for each in kept[1:-1]] == [p.node for p in phases[: len(kept) - 2]]
    last = [event.data for event in events if event.kind == OMITTED]
    assert last == ([{"count": omitted}] if omitted else [])


def test_a_completion_carries_events_as_json() -> None:
    completion = Completion(
        job="j", index=0, slot="s", attempt=1, epoch=1, rollout="r", status="scored"
    ).model_copy(update={"events": events_of([STARTED, FINISHED])})
    assert Completion.model_validate_json(completion.model_dump_json()) == completion
