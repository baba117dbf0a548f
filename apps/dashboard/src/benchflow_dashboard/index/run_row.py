"""The row of one rollout, from its log, its result and the record of its job."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from benchflow_contracts import NodeError, RolloutRecord
from benchflow_store import error_fingerprint, triage
from pydantic import ValidationError

from .log_fold import LogFold, number_or_none, spread_of, text, text_or_none

UNSCORED_KEY: Final = -1.0e300
"""The key of a rollout without a score: it sorts before every reward."""
_ENDED: Final = frozenset({"completed", "ungraded", "failed", "cancelled"})


@dataclass(slots=True)
class RunRow:
    """The columns of `runs`, without `id` and `is_current`."""

    name: str
    job: str
    slot: str | None = None
    variant: str | None = None
    attempt: int | None = None
    epoch: str | None = None
    has_files: bool = True
    task: str = "-"
    agent: str = ""
    model: str = ""
    sandbox: str = ""
    status: str = "unfinished"
    reason: str | None = None
    boundary: str = ""
    error_type: str | None = None
    cause: str | None = None
    fingerprint: str | None = None
    reward: float | None = None
    paid: float | None = None
    stderr: float | None = None
    spread: str | None = None
    leaves: int = 0
    scored: int = 0
    steps: int = 0
    asks: int = 0
    branches: int = 0
    tampered: int = 0
    grading: str | None = None
    integrity: str | None = None
    cost: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    started: float | None = None
    finished: float = 0.0
    seconds: float | None = None
    phase: str | None = None
    activity: str | None = None
    seq: int = -1
    is_final: bool = False
    counts: bool = False
    problem: str | None = None
    reward_key: float = UNSCORED_KEY

    def values(self) -> tuple[Any, ...]:
        """Return the columns in the order of `COLUMNS`."""
        return tuple(getattr(self, name) for name in COLUMNS)


COLUMNS: Final = tuple(each.name for each in fields(RunRow))


@dataclass(frozen=True, slots=True)
class RunSources:
    """What is known of one rollout."""

    job: str
    name: str
    fold: LogFold
    result: bytes | None
    """The bytes of `result.json`, `None` while the file does not exist."""
    ran: Mapping[str, Any]
    """`ran` of `config.json`: agent, model and sandbox. Read only without a result."""
    attempt: Mapping[str, Any]
    """The attempt in the record of the job; empty without one."""
    written: float
    """The time of the last write to the log."""
    has_files: bool
    is_live: bool


def make_row(sources: RunSources) -> RunRow:
    """Return the row. Pure: equal sources give equal rows."""
    fold, attempt = sources.fold, sources.attempt
    row = RunRow(name=sources.name, job=sources.job, has_files=sources.has_files)
    row.problem = fold.problem
    _add_log(row, fold)
    _add_attempt(row, attempt)
    record = _record(row, sources)
    if record is None:
        _add_running(row, sources)
    else:
        _add_record(row, record)
    if row.started is not None and row.finished >= row.started:
        row.seconds = row.finished - row.started
    row.reward_key = UNSCORED_KEY if row.reward is None else row.reward
    return row


def _add_log(row: RunRow, fold: LogFold) -> None:
    rewards = fold.leaf_rewards
    row.task, row.sandbox = fold.task or "-", fold.sandbox
    row.slot, row.attempt, row.epoch = fold.slot, fold.attempt, fold.epoch
    row.grading, row.phase, row.activity = fold.grading, fold.phase or None, fold.activity or None
    row.steps, row.asks, row.branches = fold.steps, fold.asks, fold.branches
    row.leaves = len(rewards)
    row.scored = sum(reward is not None for reward in rewards)
    spread = spread_of(rewards)
    row.spread = None if spread is None else json.dumps(spread)
    row.cost, row.tokens_in, row.tokens_out = fold.cost, fold.tokens_in, fold.tokens_out
    row.started, row.seq = fold.started, fold.seq


def _add_attempt(row: RunRow, attempt: Mapping[str, Any]) -> None:
    if not attempt:
        return
    row.slot, row.variant = text(attempt["slot"]), text(attempt["variant"])
    row.attempt, row.epoch = attempt["attempt"], str(attempt["epoch"])
    row.task = row.task if row.task != "-" else text(attempt["task"])
    row.counts = attempt["counted"]
    row.started = attempt["started"] if row.started is None else row.started
    metrics = attempt["metrics"]
    row.cost = metrics.get("cost_usd", row.cost)
    for name in ("tokens_in", "tokens_out"):
        if name in metrics:
            setattr(row, name, int(metrics[name]))


def _record(row: RunRow, sources: RunSources) -> RolloutRecord | None:
    bodies = (sources.result, sources.attempt.get("record"))
    for body in bodies:
        if body is None:
            continue
        try:
            return RolloutRecord.model_validate_json(body)
        except ValidationError as error:
            why = str(error.errors(include_url=False, include_input=False)[0]["msg"])
            row.problem = row.problem or text(f"result.json is not readable: {why}")
    return None


def _add_record(row: RunRow, record: RolloutRecord) -> None:
    row.task, row.agent = text(record.task_id), text(record.agent)
    row.model, row.sandbox = text(record.model or ""), text(record.sandbox)
    row.slot = row.slot or text_or_none(record.slot)
    row.attempt = row.attempt if record.attempt is None else min(record.attempt, 1 << 31)
    row.epoch = row.epoch or text_or_none(record.epoch)
    row.status, row.reward = record.status, number_or_none(record.reward)
    row.paid = None if record.status == "cancelled" else number_or_none(record.counted_reward())
    row.stderr = None if record.value is None else number_or_none(record.value.stderr)
    row.leaves, row.scored = _count(record.leaves), _count(record.scored)
    row.steps, row.asks = _count(record.steps), _count(record.asks)
    row.branches, row.tampered = _count(record.branches), _count(record.tampered)
    row.grading, row.integrity = record.grading, record.integrity
    row.finished = number_or_none(record.finished_at) or 0.0
    row.is_final = record.is_final
    row.phase = row.activity = None
    row.cause = None if record.cause is None else record.cause.by
    if record.reward is None:
        row.reason = outcome(record)
    if record.error is not None:
        _add_error(row, record.error)


def _add_running(row: RunRow, sources: RunSources) -> None:
    fold, attempt, ran = sources.fold, sources.attempt, sources.ran
    row.agent = text_or_none(ran.get("agent")) or ""
    row.model = text_or_none(ran.get("model")) or ""
    row.finished = fold.last or sources.written
    rewards = [reward for reward in fold.leaf_rewards if reward is not None]
    row.reward = sum(rewards) / len(rewards) if rewards else None
    error = _error(fold.error) or _error(attempt.get("error"))
    status = attempt.get("status")
    if fold.status in _ENDED:
        row.status = str(fold.status)
    elif sources.is_live or (attempt.get("is_live") and not sources.has_files):
        row.status = "running"
        return
    elif status in {"unscored", "lost"}:
        row.status = "failed"
    elif status == "cancelled":
        row.status = "cancelled"
    else:
        row.reason = f"no result, and no process: it was cut short in {fold.phase or 'the start'}"
    if not sources.has_files:
        row.finished = attempt.get("finished") or row.started or 0.0
    if error is not None and row.status != "unfinished":
        _add_error(row, error)
        row.reason = row.reason or text(f"{error.boundary}: {_first_line(error.message)}")


def _add_error(row: RunRow, error: NodeError) -> None:
    row.boundary, row.error_type = text(error.boundary, 40), text(error.type, 80)
    row.fingerprint = error_fingerprint(error)


def outcome(record: RolloutRecord) -> str:
    """Return why a rollout has no reward, in the words of `bench eval show`."""
    return text(triage(record).text)


def _error(value: object) -> NodeError | None:
    if value is None:
        return None
    try:
        return NodeError.model_validate(value)
    except ValidationError:
        return None


def _first_line(message: str) -> str:
    return next(iter(message.splitlines()), "")


def _count(number: int) -> int:
    return min(max(number, 0), 1 << 31)
