"""Exactly the rows that a trainer asked for, where the trainer computes the advantages itself."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from benchflow_contracts import Sample, UsageError
from benchflow_export import (
    ExcludedLeaf,
    GroupServer,
    ResponseRow,
    RolloutGroup,
    TrainerOptions,
    fill_rows,
    response_rows,
)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RequestedRow:
    """One row for a trainer: a sample, or a placeholder that is not trained on."""

    parts: tuple[ResponseRow, ...]
    """The sequences of the sample. A placeholder has one, with a mask of zeros."""
    reward: float | None
    """`None` if the rollout is lost: the row must not count in a baseline."""
    sample: Sample | None = None
    excluded: ExcludedLeaf | None = None
    """Set if the row is not trained on."""

    @property
    def is_truncated(self) -> bool:
        """Whether a limit on tokens or requests ended the sample."""
        return self.sample is not None and self.sample.is_truncated

    @property
    def seconds(self) -> float:
        """The time that the rollout took to its leaf; 0 if it is unknown."""
        if self.sample is None:
            return 0.0
        times = self.sample.timing
        return max(times.get("end", 0.0) - times.get("start", 0.0), 0.0)

    @property
    def labels(self) -> dict[str, str | float | None]:
        """What a reader of the row needs to find the rollout, and why it is not trained on."""
        excluded = self.excluded
        where = ("", "") if excluded is None else (excluded.rollout, excluded.leaf)
        tree, leaf = where if self.sample is None else (self.sample.tree, self.sample.leaf)
        return {
            "benchflow_rollout": tree,
            "benchflow_leaf": leaf,
            "benchflow_excluded": None if excluded is None else str(excluded),
            "benchflow_shared_prefix": "per_leaf",
            "benchflow_answer_weight": None if self.sample is None else self.sample.answer_weight,
        }


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The sizes that a trainer pads to. A longer row is left out, never cut."""

    prompt: int | None = None
    response: int | None = None

    def allow(self, row: ResponseRow) -> bool:
        """Return whether the row fits."""
        fits_prompt = self.prompt is None or len(row.prompt_ids) <= self.prompt
        return fits_prompt and (self.response is None or len(row.response_ids) <= self.response)


def check_options(options: TrainerOptions, trainer: str) -> TrainerOptions:
    """Return the options if a trainer that computes its own advantages can keep them.

    Raises:
        UsageError: An advantage is chosen, or a shared prefix is to be trained on once.
    """
    if options.advantage is not None:
        raise UsageError(
            f"{trainer} computes the advantages itself; {options.advantage!r} is not used",
            hint="choose the estimator in the trainer's own configuration",
        )
    if options.shared_prefix != "per_leaf":
        raise UsageError(
            f"{trainer} trains on the common tokens of a tree once for each leaf",
            hint="drop shared_prefix",
        )
    return options


def requested_rows(
    group: RolloutGroup,
    size: int,
    filler: int,
    *,
    limits: RowLimits | None = None,
    allow_breaks: bool = False,
) -> list[RequestedRow]:
    """Return exactly `size` rows of a group, samples first.

    A sample with a break has several sequences: without `allow_breaks` it is not trained on, and
    its return still counts. A placeholder has the prompt of another row, and one token `filler`.
    """
    leaves, _ = fill_rows(group, size)
    rows = [_row(leaf, limits or RowLimits(), allow_breaks=allow_breaks) for leaf in leaves]
    prompt = next((row.parts[0].prompt_ids for row in rows if row.parts), [filler])
    empty = ResponseRow(prompt, [filler], [0], [0.0])
    return [row if row.parts else _placeholder(row, empty) for row in rows]


def _row(leaf: Sample | ExcludedLeaf, limits: RowLimits, *, allow_breaks: bool) -> RequestedRow:
    if isinstance(leaf, ExcludedLeaf):
        return RequestedRow((), leaf.reward, leaf.sample, leaf)
    parts = response_rows(leaf)
    where = (leaf.tree, leaf.leaf)
    excluded: ExcludedLeaf | None = None
    if not parts:
        excluded = ExcludedLeaf("no-tokens", *where, sample=leaf)
    elif len(parts) > 1 and not allow_breaks:
        excluded = ExcludedLeaf("inexact", *where, f"{leaf.breaks} breaks", leaf)
    elif not all(map(limits.allow, parts)):
        sizes = ", ".join(f"{len(p.prompt_ids)}+{len(p.response_ids)}" for p in parts)
        excluded = ExcludedLeaf("too-long", *where, f"{sizes} tokens", leaf)
    return RequestedRow(() if excluded else tuple(parts), leaf.reward, leaf, excluded)


def _placeholder(row: RequestedRow, empty: ResponseRow) -> RequestedRow:
    return RequestedRow((empty,), row.reward, row.sample, row.excluded)


def row_counts(group: RolloutGroup, rows: Sequence[RequestedRow]) -> dict[str, int]:
    """Return the counts of a group, with the rows that were left out for this trainer."""
    counts = group.counts()
    known = {id(leaf) for leaf in group.excluded}
    others = [row for row in rows if row.excluded is None or id(row.excluded) not in known]
    for row in others:
        if row.excluded is not None:
            name = f"excluded_{row.excluded.reason.replace('-', '_')}"
            counts[name] = counts.get(name, 0) + 1
    surplus = len(group.samples) - sum(row.sample is not None for row in others)
    if surplus:
        counts["excluded_surplus"] = surplus
    counts["samples"] = sum(row.excluded is None for row in rows)
    return counts


async def request_groups(
    server: GroupServer, requests: Iterable[tuple[str, int]]
) -> list[RolloutGroup]:
    """Request groups at the same time, by task and size; the first error cancels the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(server.request(*each)) for each in requests]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [each.result() for each in running]


class LoopThread:
    """One event loop in a thread of its own, for callers that are not coroutines.

    A notebook has a running loop in the main thread, so that `asyncio.run` is refused there.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="benchflow-rollouts")
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine to its end, after those before it."""
        return self._pool.submit(self._runner.run, coroutine).result()

    def close(self) -> None:
        """Close the loop. Calls after the first do nothing."""
        with self._pool:
            self._pool.submit(self._runner.close)
