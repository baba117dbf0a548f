"""What crosses to a worker and back, and the record of a rollout, survive JSON."""

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from benchflow_contracts import (
    AttemptEvent,
    BeganFrom,
    Completion,
    Dispatch,
    NodeError,
    Prior,
    RolloutRecord,
    Ticket,
    Value,
)

text = st.text(max_size=12)
names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 2**53)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.none() | st.booleans() | counts | numbers | text
mappings = st.dictionaries(text, json_values, max_size=3)
errors = st.builds(NodeError, boundary=names, type=names, message=text)
identity = {
    "job": names,
    "index": counts,
    "slot": names,
    "attempt": st.integers(1, 99),
    "epoch": st.integers(1, 99),
    "rollout": names,
}
dispatches = st.builds(
    Dispatch,
    **identity,
    payload=mappings,
    needs=st.dictionaries(names, counts, max_size=2),
    deadline_sec=st.none() | st.floats(1e-9, 1e9),
)
completions = st.builds(
    Completion,
    **identity,
    status=st.sampled_from(["scored", "unscored", "cancelled", "lost"]),
    record=st.none() | mappings,
    error=st.none() | errors,
    measured=st.dictionaries(names, numbers, max_size=2),
    events=st.lists(st.builds(AttemptEvent, kind=names, ts=numbers, data=mappings), max_size=2),
)
tickets = st.builds(
    Ticket, id=names, worker=names, job=names, index=counts, attempt=st.integers(1, 99)
)
records = st.builds(
    RolloutRecord,
    rollout_id=names,
    task_id=names,
    task_digest=names,
    agent=names,
    model=st.none() | names,
    sandbox=names,
    status=st.sampled_from(["completed", "ungraded", "failed", "cancelled"]),
    reward=st.none() | numbers,
    value=st.none()
    | st.builds(
        Value, mean=numbers, n=st.just(3), variance=st.floats(0, 9), stderr=st.floats(0, 9)
    ),
    tampered=st.integers(0, 3),
    error=st.none() | errors,
    slot=st.none() | names,
    attempt=st.none() | st.integers(1, 99),
    epoch=st.none() | names,
    began_from=st.builds(BeganFrom, prior=st.none() | st.builds(Prior, steps=counts)),
    finished_at=numbers,
)


@given(st.one_of(dispatches, completions, tickets, records))
def test_a_model_of_a_job_survives_json(model: Dispatch | Completion | Ticket | RolloutRecord):
    text = model.model_dump_json()
    again = type(model).model_validate_json(text)
    assert again == model
    assert again.model_dump_json() == text


@given(dispatches)
def test_a_completion_has_the_identity_of_its_dispatch(dispatch: Dispatch):
    completion = Completion.of(dispatch, "lost")
    assert {n: getattr(completion, n) for n in identity} == {
        n: getattr(dispatch, n) for n in identity
    }


@given(records)
def test_a_record_without_a_verdict_is_never_final_and_never_counts_as_zero(record: RolloutRecord):
    if record.reward is None and not record.tampered:
        assert not record.is_final
        assert record.counted_reward() is None
    # A verdict that the agent may have steered counts as 0, unless the caller asks for it.
    if record.reward is None and record.tampered:
        assert record.counted_reward() == 0.0


def test_the_attempts_of_a_slot_are_counted_from_one():
    for model in (Dispatch, Completion, Ticket, RolloutRecord):
        with pytest.raises(ValidationError) as refused:
            model.model_validate({"attempt": 0})
        assert ("attempt",) in {each["loc"] for each in refused.value.errors()}
