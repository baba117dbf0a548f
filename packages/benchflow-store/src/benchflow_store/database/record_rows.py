"""The rows of a commit that come from the record of its rollout."""

import math

from benchflow_contracts import Completion, RolloutRecord, StoreError
from pydantic import ValidationError

from .rows import Commit, Metric, storable, to_json


def record_metrics(record: RolloutRecord) -> list[Metric]:
    """Return the metrics of a record: `reward`, `reward.ITEM` for each item, and the counts.

    In a sequential job, `learner_generation` is the version of the learner store after the rollout.
    """
    values = {} if record.reward is None else {"reward": record.reward}
    # Names of items come from the verifier. Two of them may be stored as the same text.
    values |= {storable(f"reward.{name}"): value for name, value in (record.rewards or {}).items()}
    counts = ("steps", "asks", "leaves", "scored", "branches", "tampered")
    values |= {name: float(getattr(record, name)) for name in counts}
    if record.learner is not None:
        newest = record.learner.after or record.learner.before
        values["learner_generation"] = float(newest.generation)
    return [Metric(name, value) for name, value in values.items()]


def checked_record(commit: Commit) -> str | None:
    """Return the record of a commit as JSON, `None` without one.

    Raises:
        StoreError: The commit contradicts itself.
    """
    completion = commit.completion
    wrong = next((m.name for m in commit.metrics if not _is_finite(m.value)), None)
    if wrong is not None:
        raise StoreError(f"{_name(completion)}: metric {wrong!r} is not a finite number")
    if completion.record is None:
        if commit.is_scored:
            raise StoreError(f"{_name(completion)} is scored, and has no record")
        return None
    try:
        record = RolloutRecord.model_validate(completion.record)
    except ValidationError as error:
        raise StoreError(
            f"{_name(completion)}: damaged record: {error.errors()[0]['msg']}"
        ) from error
    if record.rollout_id != completion.rollout:
        raise StoreError(f"{_name(completion)}: the record is of rollout {record.rollout_id!r}")
    if record.is_final != commit.is_scored:
        raise StoreError(
            f"{_name(completion)} is {completion.status}, and its record is {record.status} "
            f"with reward {record.reward}"
        )
    return to_json(completion.record)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _name(completion: Completion) -> str:
    return f"attempt {completion.attempt} of {completion.slot!r}"
