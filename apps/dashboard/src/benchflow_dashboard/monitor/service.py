"""Monitor mode as a part of the application: its writer, its assembler and its readers."""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchflow_engine.secret_redactor import SecretRedactor
from benchflow_traces import LogRecord, Span
from litestar import Request

from benchflow_dashboard.security.access import access_of, require_room
from benchflow_dashboard.security.limits import RateLimit
from benchflow_dashboard.settings import DashboardSettings

from .alerts import AlertManager
from .assembler import Assembler
from .assembler_process import AssemblerProcess
from .codec import SpanRow, log_rows, span_rows
from .config import MonitorConfig, read_monitor_config
from .credentials import mask_credentials
from .database import MonitorDatabase
from .evals import EvalImporter
from .keys import IngestKey, read_keys
from .reader import MonitorReader
from .rules import read_rules
from .scoring import OnlineScorer
from .views import MonitorViews
from .webhook import WebhookSender
from .work_thread import WorkThread
from .writer import SpanWriter

_logger = logging.getLogger(__name__)
_QUOTA_SEC: Final = 10.0
_SEND_SEC: Final = 2.0
_DECODERS: Final = 2
"""Threads that decode requests. More would take the interpreter from those that make pages."""
_EVALS_SEC: Final = 30.0


class MonitorService:
    """Receives, stores, folds and scores production traces.

    Args:
        location: A file of SQLite, or the URL of a Postgres database.
        config: What `monitor.toml` says.
        keys: The ingest keys. Without any, every client of the loopback may send.
        jobs_dir: The directory with the jobs of `[[evals]]`.
        has_process: Whether rollouts are folded and scored in a process of their own.

    Raises:
        UsageError: A reward of the configuration cannot be made.
        StoreError: The database cannot be opened.
    """

    def __init__(
        self,
        location: Path | str,
        config: MonitorConfig | None = None,
        keys: Iterable[IngestKey] = (),
        jobs_dir: Path = Path("jobs"),
        *,
        has_process: bool = False,
    ) -> None:
        self.config = config or MonitorConfig()
        self.keys: Mapping[str, IngestKey] = {key.name: key for key in keys}
        self._redactor = SecretRedactor(
            value for name in self.config.redact_env if (value := os.environ.get(name))
        )
        self.reader = MonitorReader(MonitorDatabase(location))
        self.views = MonitorViews(self.reader)
        self.writer = SpanWriter(location, max_waiting=self.config.max_waiting_mb * 2**20)
        self.decoding = WorkThread(_DECODERS)
        self._thread = WorkThread()
        scorer = OnlineScorer(self.config)
        self.assembler = (
            AssemblerProcess(location, self.config)
            if has_process
            else Assembler(location, self.config, scorer, thread=self._thread)
        )
        self.evals = EvalImporter(location, self.config, scorer, jobs_dir, thread=self._thread)
        self.rules = read_rules(self.config.alerts)
        table = self.config.webhook
        self._alerts = AlertManager(
            location, self.rules, sends=table is not None, quiet_sec=self.config.quiet_sec
        )
        self._deliveries = None if table is None else MonitorDatabase(location)
        self._sender = (
            None
            if table is None or self._deliveries is None
            else WebhookSender(self._deliveries, table, thread=self._thread)
        )

    def span_rows(self, spans: Iterable[Span]) -> list[SpanRow]:
        """Return the rows of spans, without secrets."""
        return span_rows(spans, self._redact)

    def log_rows(self, records: Iterable[LogRecord]) -> list[SpanRow]:
        """Return the rows of log records, without secrets."""
        return log_rows(records, self._redact)

    def _redact(self, text: str) -> str:
        clean = mask_credentials(text)
        return self._redactor.json(clean.encode()).decode() if self._redactor else clean

    async def take_quota(self, request: Request[Any, Any, Any], spans: int) -> None:
        """Count spans against the quota of the request's key, which holds ten seconds of its rate.

        Raises:
            HTTPException: The quota is used up: status 429 with `Retry-After`.
            StoreError: The shared database of limits does not answer.
        """
        key = self.keys.get(request.state.get("ingest_key", ""))
        if key is None or key.spans_per_sec is None:
            return
        count = max(1.0, key.spans_per_sec * _QUOTA_SEC)
        buckets = access_of(request).buckets
        quota = RateLimit("ingest", buckets, count, count / key.spans_per_sec)
        wait = await asyncio.to_thread(quota.take, key.name, float(spans))
        require_room(wait, "the quota of the key is used up")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Assemble rollouts and check alerts inside this block; store what waits at its end."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.assembler.run()),
                    group.create_task(self._watch_alerts()),
                    group.create_task(self._watch_evals()),
                ]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await asyncio.to_thread(self.close)

    async def _watch_alerts(self) -> None:
        """Check the rules, and send alerts. A fault is tried again."""
        every = max(1, round(self.config.check_sec / _SEND_SEC))
        for number in itertools.count():
            try:
                if number % every == 0:
                    await self._thread.run(self._alerts.check)
                if self._sender is not None:
                    await self._sender.send_due()
            except Exception as error:  # noqa: BLE001 - alerts must not end the server
                _logger.warning("alerts were not checked: %s", error)
            await asyncio.sleep(_SEND_SEC)

    async def _watch_evals(self) -> None:
        """Read what is new in eval jobs. A fault is tried again."""
        while True:
            try:
                if await self.evals.update():
                    self.assembler.on_change()
            except Exception as error:  # noqa: BLE001 - a damaged job must not end the server
                _logger.warning("evals were not read: %s", error)
            await asyncio.sleep(_EVALS_SEC)

    def close(self) -> None:
        """Store what waits, and close the database. Idempotent."""
        self.decoding.close()
        self._thread.close()
        self.writer.close()
        self.assembler.close()
        self._alerts.close()
        if self._deliveries is not None:
            self._deliveries.close()
        self.views.close()
        self.reader.close()


def make_monitor(settings: DashboardSettings, *, has_process: bool) -> MonitorService | None:
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
    return MonitorService(
        settings.monitor, config, keys, settings.jobs_dir, has_process=has_process
    )
