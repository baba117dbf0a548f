"""Fold open traces into rollouts, and score those that are over."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError
from benchflow_traces import ObservedRollout, observed_rollouts

from .config import MonitorConfig
from .database import FoldedConversation, FoldedRollout, MonitorDatabase, OpenTrace
from .facts import Price, RolloutFacts, facts_of
from .scoring import OnlineScorer
from .work_thread import WorkThread

_logger = logging.getLogger(__name__)
_REFRESH_SEC: Final = 2.0
"""How often a rollout that still changes is folded again."""
_RETENTION_SEC: Final = 60.0


_CHUNK: Final = 50
"""Conversations that are folded, scored and stored together."""
_OVER_LIMIT: Final = 500
_REFRESH_LIMIT: Final = 50
"""Rollouts of one pass. Under load, those that are over go before those that still run."""


@dataclass(frozen=True, slots=True)
class _Due:
    """The rollouts of a conversation, and whether its traces are over."""

    traces: Sequence[OpenTrace]
    rollouts: Sequence[tuple[ObservedRollout, RolloutFacts]]
    is_closed: bool


class Assembler:
    """Turns stored spans into stored rollouts. A span that comes late opens its trace again."""

    def __init__(
        self,
        location: Path | str,
        config: MonitorConfig,
        scorer: OnlineScorer,
        *,
        clock: Callable[[], float] = time.time,
        thread: WorkThread | None = None,
    ) -> None:
        self._thread = thread or WorkThread()
        self._location = location
        self._config = config
        self._scorer = scorer
        self._clock = clock
        self._prices: Mapping[str, Price] = {
            model: Price(table.input, table.output, table.cached)
            for model, table in config.prices.items()
        }
        self._database: MonitorDatabase | None = None
        self._deleted_at = 0.0
        self.on_change: Callable[[], None] = lambda: None
        """Called after each pass that stored a rollout."""

    async def run(self, interval: float = 0.5) -> None:
        """Assemble until this task is cancelled. A fault of the database is tried again."""
        while True:
            pause = interval
            try:
                if await self.assemble() >= _OVER_LIMIT:
                    pause = 0.0
            except Exception as error:  # noqa: BLE001 - one bad trace must not end the server
                _logger.warning("rollouts were not assembled: %s", error)
                await self._thread.run(self._close)
            await asyncio.sleep(pause)

    async def assemble(self) -> int:
        """Fold what changed and score what is over, once. Return the number of rollouts.

        Raises:
            StoreError: The database failed.
        """
        stored = 0
        seen: set[str] = set()
        due = await self._thread.run(self._due)
        for begin in range(0, len(due), _CHUNK):
            stored += await self._assemble_some(due[begin : begin + _CHUNK], seen)
        await self._thread.run(self._retain)
        if stored:
            self.on_change()
        return stored

    async def _assemble_some(self, due: Sequence[OpenTrace], seen: set[str]) -> int:
        before = set(seen)
        try:
            chunk = await self._thread.run(self._load, due, seen)
            folded = await self._scored(chunk)
            await self._thread.run(self._connected().keep_conversations, folded, self._clock())
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one bad trace must not hold up the others
            if len(due) == 1:
                _logger.warning("the trace %s cannot be folded: %s", due[0].trace, error)
                await self._thread.run(self._connected().give_up, due)
                return 0
            seen.intersection_update(before)
            return sum([await self._assemble_some([one], seen) for one in due])
        return sum(len(one.rollouts) for one in folded)

    def close(self) -> None:
        """Wait for the work that runs, and close the database. Idempotent."""
        self._thread.close()
        self._close()

    def _due(self) -> list[OpenTrace]:
        now, database = self._clock(), self._connected()
        grace, idle = now - self._config.grace_sec, now - self._config.idle_sec
        over = database.traces_over(grace, min(grace, idle), _OVER_LIMIT)
        return [*over, *database.traces_changed(now - _REFRESH_SEC, _REFRESH_LIMIT)]

    def _is_over(self, trace: OpenTrace, now: float) -> bool:
        wait = self._config.grace_sec if trace.has_root else self._config.idle_sec
        return trace.changed + wait <= now

    def _load(self, due: Sequence[OpenTrace], seen: set[str]) -> list[_Due]:
        """Fold the conversations of traces that are not in `seen`, and add their traces to it."""
        database, now = self._connected(), self._clock()
        loaded: list[_Due] = []
        for trace in due:
            if trace.trace in seen:
                continue
            traces = database.traces_with(trace.trace)
            seen |= traces
            # Read before the spans: a span that comes meanwhile leaves its trace open.
            parts = database.open_among(traces)
            rollouts = observed_rollouts(*database.items_of(traces))
            facts = [(one, facts_of(one, self._prices)) for one in rollouts]
            loaded.append(_Due(parts, facts, all(self._is_over(one, now) for one in parts)))
        return loaded

    async def _scored(self, chunk: Sequence[_Due]) -> list[FoldedConversation]:
        """Score the rollouts that are over, at the same time: a reward may wait for a judge."""

        async def score(due: _Due, rollout: ObservedRollout, facts: RolloutFacts) -> FoldedRollout:
            scores = await self._scorer.score(rollout) if due.is_closed else []
            return FoldedRollout(rollout, facts, scores, due.is_closed)

        async with asyncio.TaskGroup() as group:
            tasks = [
                [group.create_task(score(due, *folded)) for folded in due.rollouts] for due in chunk
            ]
        return [
            FoldedConversation(due.traces, [task.result() for task in scored], due.is_closed)
            for due, scored in zip(chunk, tasks, strict=True)
        ]

    def _retain(self) -> None:
        now = self._clock()
        if now - self._deleted_at < _RETENTION_SEC:
            return
        self._deleted_at = now
        self._connected().delete_before(now - self._config.keep_days * 86_400)

    def _connected(self) -> MonitorDatabase:
        if self._database is None:
            self._database = MonitorDatabase(self._location)
        return self._database

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
