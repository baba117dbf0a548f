"""The thread that stores spans: senders that wait at the same time share one transaction."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import BenchFlowError, StoreError

from .codec import SpanRow
from .database import MonitorDatabase

_logger = logging.getLogger(__name__)
_GROUP_ROWS: Final = 5_000


class ServerBusyError(BenchFlowError):
    """Too many bytes wait for the disk. Send again later."""

    default_hint = "send again after a second"
    default_retryable = True


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: Sequence[SpanRow]
    size: int
    loop: asyncio.AbstractEventLoop
    stored: "asyncio.Future[None]"


class SpanWriter:
    """Stores batches of spans durably, in the order in which they came."""

    def __init__(
        self, location: Path | str, *, max_waiting: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._location = location
        self._max_waiting = max_waiting
        self._clock = clock
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="monitor-writer", daemon=True)
        self._thread.start()

    async def store(self, rows: Sequence[SpanRow]) -> None:
        """Return when the rows are durable.

        Raises:
            ServerBusyError: Too many bytes wait already. Nothing of `rows` is stored.
            StoreError: The database failed. The sender should send the rows again.
        """
        if not rows:
            return
        size = sum(len(row.body) for row in rows)
        with self._lock:
            if self._waiting and self._waiting + size > self._max_waiting:
                raise ServerBusyError(f"{self._waiting} bytes wait for the disk")
            self._waiting += size
        loop = asyncio.get_running_loop()
        batch = _Batch(rows, size, loop, loop.create_future())
        self._queue.put(batch)
        await batch.stored

    def close(self) -> None:
        """Store what waits, and end the thread. Idempotent."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        database: MonitorDatabase | None = None
        while (group := self._next_group()) is not None:
            try:
                if database is None:
                    database = MonitorDatabase(self._location)
                database.keep_spans([r for batch in group for r in batch.rows], self._clock())
                self._answer(group, None)
                group = []
                database.tidy(is_idle=self._queue.empty())
            except Exception as failure:  # noqa: BLE001 - senders wait for the thread
                self._answer(group, _as_store_error(failure))
                _close(database)
                database = None
        _close(database)

    def _next_group(self) -> list[_Batch] | None:
        first = self._queue.get()
        if first is None:
            return None
        group, rows = [first], len(first.rows)
        while rows < _GROUP_ROWS:
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                break
            if batch is None:
                self._queue.put(None)
                break
            group.append(batch)
            rows += len(batch.rows)
        return group

    def _answer(self, group: Sequence[_Batch], error: BenchFlowError | None) -> None:
        with self._lock:
            self._waiting -= sum(batch.size for batch in group)
        for batch in group:
            # The loop of a server that stopped does not take the answer.
            if not batch.loop.is_closed():
                batch.loop.call_soon_threadsafe(_resolve, batch.stored, error)


def _as_store_error(failure: Exception) -> BenchFlowError:
    _logger.warning("the writer of spans failed: %s", failure)
    if isinstance(failure, BenchFlowError):
        return failure
    error = StoreError(f"spans could not be stored: {failure!r}")
    error.__cause__ = failure
    return error


def _close(database: MonitorDatabase | None) -> None:
    """Close a database that may have failed."""
    if database is None:
        return
    try:
        database.close()
    except Exception as failure:  # noqa: BLE001 - the next batch opens it again
        _logger.warning("the database of spans was not closed: %s", failure)


def _resolve(future: "asyncio.Future[None]", error: BenchFlowError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
