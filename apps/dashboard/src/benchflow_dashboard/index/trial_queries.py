"""The resolved slots of jobs, as the statistics of `benchflow_analysis` take them."""

from collections.abc import Sequence
from typing import Any, Final

from benchflow_analysis.statistics import Trial

from .database import IndexSession
from .queries import Job

_COLUMNS: Final = (
    "slot, name, COALESCE(variant, agent || CASE model WHEN '' THEN '' ELSE '/' || model END), "
    "task, attempt, paid, reward, leaves, tampered, boundary, error_type, fingerprint, tokens_in, "
    "tokens_out, cost, epoch, started, finished, seconds"
)
_COUNTED: Final = "counts = 1"
_ENDED: Final = "status IN ('completed', 'ungraded', 'failed')"
"""Without a record of the job, as of version 0.8, each attempt that ended resolves its slot."""


def read_trials(session: IndexSession, job: Job) -> list[Trial]:
    """Return the resolved slots of a job, by variant in the order of the schedule, then by slot.

    The attempt that stands for a slot decides. Slots that were skipped are not known here.
    """
    resolved = _ENDED if job.status == "unknown" else _COUNTED
    rows = session.rows(
        f"SELECT {_COLUMNS} FROM runs WHERE job = ? AND is_current = 1 AND {resolved} "
        "ORDER BY slot, name",
        (job.name,),
    )
    places = {name: place for place, name in enumerate(job.variants)}
    rows.sort(key=lambda row: (places.get(row[2], len(places)), row[2]))
    return [_trial(job.name, index, row) for index, row in enumerate(rows)]


def _trial(job: str, index: int, row: Sequence[Any]) -> Trial:
    slot, name, variant, task, attempt, paid, reward, leaves, tampered, *rest = row
    boundary, error_type, fingerprint, *rest = rest
    tokens_in, tokens_out, cost, epoch, started, finished, seconds = rest
    repeat = (slot or "").rpartition("#")[2]
    has_error = paid is None
    return Trial(
        job=job,
        index=index,
        slot=slot or name,
        variant=variant,
        task=task,
        repeat=int(repeat) if repeat.isascii() and repeat.isdecimal() and len(repeat) < 10 else 0,
        attempt=attempt or 1,
        status="failed" if paid is None else "completed",
        reward=paid,
        scored=paid is not None,
        value=reward,
        leaves=leaves,
        tampered=tampered,
        error_boundary=(boundary or None) if has_error else None,
        error_type=error_type if has_error else None,
        fingerprint=fingerprint if has_error else None,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cost_usd=cost,
        rollout_id=name,
        epoch=epoch,
        started_at=started,
        finished_at=finished,
        seconds=seconds,
    )
