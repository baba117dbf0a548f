"""Fold open traces into rollouts, and score those that are over."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_traces import ObservedRollout, observed_rollouts

from .config import MonitorConfig
from .database import MonitorDatabase, OpenTrace
from .facts import Price, facts_of
from .scoring import OnlineScorer
from .work_thread import WorkThread

_logger = logging.getLogger(__name__)
_REFRESH_SEC: Final = 2.0
"""How often a rollout that still changes is folded again."""
_RETENTION_SEC: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Due:
    """The rollouts of some traces, and whether the traces are over."""

    traces: Sequence[OpenTrace]
    rollouts: Sequence[ObservedRollout]
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
            try:
                await self.assemble()
            except Exception as error:  # noqa: BLE001 - one bad trace must not end the server
                _logger.warning("rollouts were not assembled: %s", error)
                await self._thread.run(self._close)
            await asyncio.sleep(interval)

    async def assemble(self) -> int:
        """Fold what changed and score what is over, once. Return the number of rollouts.

        Raises:
            StoreError: The database failed.
        """
        stored = 0
        seen: set[str] = set()
        for trace in await self._thread.run(self._due):
            if trace.trace in seen:
                continue
            due = await self._thread.run(self._load, trace)
            seen |= {one.trace for one in due.traces}
            await self._store(due)
            stored += len(due.rollouts)
        await self._thread.run(self._retain)
        if stored:
            self.on_change()
        return stored

    def close(self) -> None:
        """Wait for the work that runs, and close the database. Idempotent."""
        self._thread.close()
        self._close()

    def _due(self) -> list[OpenTrace]:
        now = self._clock()
        traces = self._connected().open_traces()
        return [one for one in traces if self._is_over(one, now) or _stale(one, now)]

    def _is_over(self, trace: OpenTrace, now: float) -> bool:
        wait = self._config.grace_sec if trace.has_root else self._config.idle_sec
        return trace.changed + wait <= now

    def _load(self, trace: OpenTrace) -> _Due:
        database = self._connected()
        # Read before the spans: a span that comes meanwhile leaves its trace open.
        is_open = {one.trace: one for one in database.open_traces(limit=100_000)}
        spans, logs, traces = database.conversation_of(trace.trace)
        parts = [is_open[name] for name in traces if name in is_open]
        now = self._clock()
        rollouts = observed_rollouts(spans, logs)
        return _Due(parts, rollouts, all(self._is_over(one, now) for one in parts))

    async def _store(self, due: _Due) -> None:
        for rollout in due.rollouts:
            scores = await self._scorer.score(rollout) if due.is_closed else []
            facts = facts_of(rollout, self._prices)
            await self._thread.run(
                self._connected().keep_rollout,
                rollout,
                facts,
                scores,
                is_closed=due.is_closed,
                now=self._clock(),
            )
        await self._thread.run(
            self._connected().settle, due.traces, is_closed=due.is_closed, now=self._clock()
        )

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


def _stale(trace: OpenTrace, now: float) -> bool:
    return trace.changed > trace.folded and now - trace.folded >= _REFRESH_SEC
