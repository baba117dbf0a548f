"""Monitor mode as a part of the application: its writer, its assembler and its readers."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow_engine.secret_redactor import SecretRedactor
from benchflow_store.database.connection import Row
from benchflow_traces import LogRecord, Span
from litestar import Request
from litestar.exceptions import HTTPException

from benchflow_dashboard.settings import DashboardSettings

from .assembler import Assembler
from .codec import SpanRow, log_rows, redact_patterns, span_rows
from .config import MonitorConfig, read_monitor_config
from .database import MonitorDatabase
from .keys import IngestKey, Quotas, read_keys
from .scoring import OnlineScorer
from .writer import SpanWriter


class MonitorService:
    """Receives, stores, folds and scores production traces.

    Args:
        location: A file of SQLite, or the URL of a Postgres database.
        config: What `monitor.toml` says.
        keys: The ingest keys. Without any, every client of the loopback may send.

    Raises:
        UsageError: A reward of the configuration cannot be made.
        StoreError: The database cannot be opened.
    """

    def __init__(
        self,
        location: Path | str,
        config: MonitorConfig | None = None,
        keys: Iterable[IngestKey] = (),
    ) -> None:
        self.config = config or MonitorConfig()
        self.keys: Mapping[str, IngestKey] = {key.name: key for key in keys}
        self._quotas = Quotas(self.keys)
        self._location = location
        self._redactor = SecretRedactor(
            value for name in self.config.redact_env if (value := os.environ.get(name))
        )
        self._reader = MonitorDatabase(location)
        self._reading = threading.Lock()
        self.writer = SpanWriter(location, max_waiting=self.config.max_waiting_mb * 2**20)
        self.assembler = Assembler(location, self.config, OnlineScorer(self.config))

    def span_rows(self, spans: Iterable[Span]) -> list[SpanRow]:
        """Return the rows of spans, without secrets."""
        return span_rows(spans, self._redact)

    def log_rows(self, records: Iterable[LogRecord]) -> list[SpanRow]:
        """Return the rows of log records, without secrets."""
        return log_rows(records, self._redact)

    def _redact(self, text: str) -> str:
        clean = redact_patterns(text)
        return self._redactor.json(clean.encode()).decode() if self._redactor else clean

    def take_quota(self, request: Request[Any, Any, Any], spans: int) -> None:
        """Count spans against the quota of the request's key.

        Raises:
            HTTPException: The quota is used up: status 429 with `Retry-After`.
        """
        wait = self._quotas.take(request.state.get("ingest_key", ""), spans)
        if wait:
            headers = {"Retry-After": f"{wait:.1f}"}
            raise HTTPException(
                status_code=429, detail="the quota of the key is used up", headers=headers
            )

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of one SELECT. Safe in threads."""
        with self._reading:
            return self._reader.query(sql, values)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Assemble rollouts inside this block. What was accepted is stored at its end."""
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self.assembler.run())
                try:
                    yield
                finally:
                    task.cancel()
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Store what waits, and close the database."""
        self.writer.close()
        self.assembler.close()
        with self._reading:
            self._reader.close()


def make_monitor(settings: DashboardSettings) -> MonitorService | None:
    """Return the monitor of a dashboard, or None if its settings do not name a database.

    Raises:
        UsageError: `monitor.toml` or the file of ingest keys is wrong.
        StoreError: The database cannot be opened.
    """
    if settings.monitor is None:
        return None
    path = settings.monitor_config
    config = None if path is None else read_monitor_config(path)
    keys = () if settings.ingest_keys is None else read_keys(settings.ingest_keys)
    return MonitorService(settings.monitor, config, keys)
