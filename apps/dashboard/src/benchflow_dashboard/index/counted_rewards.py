"""Writes the rewards of rollouts, and keeps the sums over rollouts equal to them."""

from collections.abc import Iterable
from typing import Final

from .database import IndexWriter
from .reward_sums import BINS, SignalSum, bin_of

_BINS: Final = ", ".join(f"bin{at}" for at in range(BINS))
_SUMS: Final = ("runs", "total", "squares", "signals", "unscored", *_BINS.split(", "))
_IN_BINS: Final = ", ".join(f"?1 * (mean IS NOT NULL AND bin = {at})" for at in range(BINS))
_ADD: Final = (
    f"INSERT INTO reward_cells SELECT ?2, ?3, space, granularity, step, ?1 * (mean IS NOT NULL), "
    "?1 * COALESCE(mean, 0), ?1 * COALESCE(mean * mean, 0), ?1 * signals, ?1 * unscored, "
    f"{_IN_BINS} FROM rewards WHERE run = ?4 "
    "ON CONFLICT (job, variant, space, granularity, step) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)
_DROP: Final = (
    "DELETE FROM reward_cells WHERE job = ? AND variant = ? AND signals = 0 AND unscored = 0"
)


def write_rewards(writer: IndexWriter, run: int, rows: Iterable[SignalSum]) -> None:
    """Replace the rewards of a rollout, which must not be in the sums now."""
    writer.run("DELETE FROM rewards WHERE run = ?", (run,))
    for row in rows:
        bin_ = 0 if row.mean is None else bin_of(row.mean)
        writer.run("INSERT INTO rewards VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (run, *row, bin_))


def count_rewards(writer: IndexWriter, run: int, job: str, variant: str, sign: int) -> None:
    """Add the rewards of a rollout to the sums of its job and variant, or take them away."""
    writer.run(_ADD, (sign, job, variant, run))
    if sign < 0:
        writer.run(_DROP, (job, variant))
