"""The client: records what an agent does, and hands the records to a background thread."""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack, cast

from .sender import MonitorStats, Sender
from .spool import Spool, default_spool

SCHEMA = 1
"""The version of the records, as the server reads them."""

MAX_RECORD = 1_000_000
"""Bytes of one record. A longer text in a record is cut."""

_logger = logging.getLogger(__name__)


class StepFields(TypedDict, total=False):
    """What a step may say. Leave out what is unknown."""

    prompt: str
    """What the user wrote, on the first step of a turn."""
    reasoning: str
    message: str
    """What the model answered."""
    tool_calls: Sequence[Mapping[str, object]]
    """Each with `id` and `name`, and `arguments` in any JSON form."""
    observations: Sequence[Mapping[str, object]]
    """Each with `tool_call_id` and `content`; `status` is `completed` or `failed`."""
    usage: Mapping[str, int]
    """`input_tokens`, `output_tokens` and `cached_tokens`."""
    model: str
    stop_reason: str
    """Why a turn ended: `end_turn`, `max_tokens`, `refusal` or another text."""
    role: str
    """The agent of this step, in a program of several agents."""
    started_at: float
    """Seconds since the epoch; default: the end of the step before."""


@dataclass(frozen=True, slots=True)
class MonitorLimits:
    """What the client may use."""

    spool_bytes: int = 64 * 2**20
    """Bytes of the directory for records while the server is away."""
    queue_records: int = 10_000
    """Records in memory."""
    flush_sec: float = 1.0
    """How long a record waits for others before it is sent."""


class Monitor:
    """Reports rollouts to a server. Use one for a program; all methods are safe in threads.

    No method blocks for longer than the lock of a queue, and no method raises because of the
    server, the network or the disk. A record that cannot be kept is counted in `stats`.

    Args:
        url: The base URL of the server, such as `http://127.0.0.1:8642`.
        service: The name of the agent or the program.
        version: The version of the agent. Charts compare versions.
        environment: Where the agent runs, such as `production`.
        key: The ingest key of the server; default: `$BENCHFLOW_MONITOR_KEY`.
        spool: A directory for records while the server is away; default: a directory of this
            user for this URL. Only this user can read it.
        limits: Bounds of memory and disk. New records are dropped at a limit.
    """

    def __init__(
        self,
        url: str,
        *,
        service: str,
        version: str = "",
        environment: str = "",
        key: str | None = None,
        spool: Path | None = None,
        limits: MonitorLimits | None = None,
    ) -> None:
        self._resource = {"service": service, "version": version, "environment": environment}
        self._arguments = (url, key or os.environ.get("BENCHFLOW_MONITOR_KEY"))
        self._spool = spool or default_spool(url)
        self._limits = limits or MonitorLimits()
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self._pid = 0

    def rollout(self, rollout_id: str | None = None, *, role: str = "agent") -> "RolloutReporter":
        """Begin a rollout: one conversation or one task of the agent.

        Give the id of a conversation that your program has; default: a random id.
        """
        return RolloutReporter(self, rollout_id or uuid.uuid4().hex, role)

    @property
    def stats(self) -> MonitorStats:
        """What happened to the records of this process so far."""
        return self._running().stats()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all records so far are sent or on disk. Return whether that is so."""
        return self._running().flush(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, for about `timeout` seconds; write the rest to disk. Idempotent."""
        if self._sender is not None and self._pid == os.getpid():
            self._sender.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self, record: Mapping[str, object]) -> None:
        """Queue one record. For `RolloutReporter`."""
        try:
            line = _encoded({**record, "resource": self._resource})
            self._running().put(line)
        except Exception:
            # The agent must not fail because it is watched.
            _logger.warning("a record was dropped", exc_info=True)

    def _running(self) -> Sender:
        """Return the sender of this process: a fork does not have the thread of its parent."""
        with self._lock:
            if self._sender is None or self._pid != os.getpid():
                url, key = self._arguments
                spool = Spool(self._spool, self._limits.spool_bytes)
                self._pid = os.getpid()
                self._sender = Sender(
                    url,
                    key,
                    spool,
                    queue_records=self._limits.queue_records,
                    flush_sec=self._limits.flush_sec,
                )
            return self._sender


class RolloutReporter:
    """Reports the steps of one rollout. Made by `Monitor.rollout`."""

    def __init__(self, monitor: Monitor, rollout_id: str, role: str) -> None:
        self.id = rollout_id
        self._monitor = monitor
        self._role = role
        self._lock = threading.Lock()
        self._next = 0
        self._began = time.time()
        self._report("started", ts=self._began)

    def step(self, **fields: Unpack[StepFields]) -> None:
        """Report one step: what the model said, the tools it called, and their results."""
        now = time.time()
        with self._lock:
            began, self._began = fields.get("started_at", self._began), now
        self._report("step", ts=now, **{"role": self._role, **fields, "started_at": began})

    def score(self, name: str, value: float, *, explanation: str = "") -> None:
        """Report a score that the program itself gives the rollout, such as a user's vote."""
        self._report("score", ts=time.time(), name=name, value=value, explanation=explanation)

    def end(self, error: BaseException | str | None = None) -> None:
        """Report the end. A rollout without an end is shown as running until it is idle."""
        failure: dict[str, object] | None = None
        if error is not None:
            kind = type(error).__name__ if isinstance(error, BaseException) else "Error"
            failure = {"type": kind, "message": _text(error)}
        self._report("ended", ts=time.time(), error=failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(error)

    def _report(self, kind: str, **fields: object) -> None:
        with self._lock:
            index, self._next = self._next, self._next + 1
        self._monitor.report({"rollout": self.id, "index": index, "kind": kind, **fields})


def _text(value: object) -> str:
    """Return `str(value)`, also if the value's own code fails."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value of the agent may run any code
        return f"[{type(value).__name__} without a text]"


def _encoded(record: Mapping[str, object]) -> bytes:
    line = json.dumps(record, default=_text, ensure_ascii=True).encode()
    if len(line) <= MAX_RECORD:
        return line
    return json.dumps(_cut(record, MAX_RECORD // 20), default=_text, ensure_ascii=True).encode()


def _cut(value: object, limit: int) -> object:
    """Return `value` with at most `limit` characters of each text, and 20 items of each list."""
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}\n[{len(value) - limit} characters more]"
    if isinstance(value, Mapping):
        items = list(cast("Mapping[object, object]", value).items())[:40]
        return {str(key)[:200]: _cut(item, limit // 4) for key, item in items}
    if isinstance(value, list | tuple):
        return [_cut(item, limit // 4) for item in cast("Sequence[object]", value)[:20]]
    return value
