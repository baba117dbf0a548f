"""The background thread: it batches records, sends them, and keeps them while it cannot."""

import atexit
import gzip
import logging
import queue
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal, cast

import httpx

from .spool import Spool, records_of

PATH = "/v1/benchflow/records"
BATCH_RECORDS = 500
BATCH_BYTES = 2 * 2**20
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0

_logger = logging.getLogger(__name__)

# httpx imports its transport on first use. A fork of the host program in the middle of an import
# would leave a broken module to the child, so the import is not left to the thread.
httpx.HTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).close()

Outcome = Literal["sent", "refused", "spooled", "wait"]


@dataclass(frozen=True, slots=True)
class MonitorStats:
    """What happened to the records of one process."""

    queued: int
    """Records that a caller reported."""
    sent: int
    """Records that the server accepted, those from disk included."""
    spooled: int
    """Records written to disk."""
    dropped: int
    """Records lost: memory and disk were full, or the server refused them for good. A warning of
    the logger `benchflow_monitor` has the reason."""


class Sender:
    """Owns the queue and the thread. The thread is a daemon and ends with `close`."""

    def __init__(
        self,
        url: str,
        key: str | None,
        spool: Spool,
        *,
        queue_records: int,
        flush_sec: float,
    ) -> None:
        self._url = url.rstrip("/") + PATH
        self._headers = {"content-type": "application/json", "content-encoding": "gzip"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._spool = spool
        self._flush_sec = flush_sec
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._limit = queue_records
        self._lock = threading.Condition()
        self._queued = self._sent = self._spooled = self._dropped = self._settled = 0
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._unsent: Sequence[bytes] = ()
        self._refused = 0
        self._retry_at = 0.0
        self._wait = FIRST_WAIT
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="benchflow-monitor", daemon=True)
        self._thread.start()
        atexit.register(self.close, 2.0)

    def put(self, line: bytes) -> None:
        """Queue one record, or count it as dropped."""
        with self._lock:
            self._queued += 1
            if self._closing.is_set() or self._queued - self._settled > self._limit:
                self._dropped += 1
                self._settled += 1
                self._lock.notify_all()
                return
            self._queue.put(line)

    def stats(self) -> MonitorStats:
        """Return the counters."""
        with self._lock:
            return MonitorStats(self._queued, self._sent, self._spooled, self._dropped)

    def flush(self, timeout: float) -> bool:
        """Wait until every record so far is sent, on disk or dropped."""
        with self._lock:
            target = self._queued
            return self._lock.wait_for(lambda: self._settled >= target, timeout)

    def close(self, timeout: float) -> None:
        """End the thread after at most about `timeout` seconds. Idempotent."""
        atexit.unregister(self.close)
        if self._closing.is_set():
            return
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout + 1.0)
        # The thread may still wait for the network, or it failed. The server ignores a record that
        # it gets twice.
        self._keep([*self._unsent, *self._waiting()])

    def _run(self) -> None:
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 - a fork during an import breaks the module
            self._warn("nothing is sent until the program ends, and then written to disk", error)

    def _send(self) -> None:
        # Reading the certificates of the machine takes long, and plain HTTP does not use them.
        tls = self._url.startswith("https:")
        context = True if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with httpx.Client(verify=context, trust_env=False) as client:
            while not (self._closing.is_set() and self._queue.empty()):
                self._send_spooled(client)
                self._deliver(client, self._take())

    def _take(self) -> list[bytes]:
        """Return the next records: at most a batch, after at most `flush_sec` seconds."""
        batch: list[bytes] = []
        size = 0
        end = time.monotonic() + self._flush_sec
        while len(batch) < BATCH_RECORDS and size < BATCH_BYTES:
            try:
                line = self._queue.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                break
            batch.append(line)
            size += len(line)
        return batch

    def _deliver(self, client: httpx.Client, batch: Sequence[bytes]) -> None:
        if not batch:
            return
        self._unsent = batch
        outcome = self._post(client, _body(batch)) if self._may_send() else "wait"
        if outcome == "wait":
            self._keep(batch)
        else:
            self._count(outcome, len(batch))
        self._unsent = ()

    def _keep(self, batch: Sequence[bytes]) -> None:
        kept = not batch or self._spool.put(_body(batch), len(batch))
        self._count("spooled" if kept else "refused", len(batch))

    def _waiting(self) -> list[bytes]:
        lines: list[bytes] = []
        with suppress(queue.Empty):
            while True:
                if (line := self._queue.get_nowait()) is not None:
                    lines.append(line)
        return lines

    def _send_spooled(self, client: httpx.Client) -> None:
        while self._may_send() and (path := self._spool.oldest()) is not None:
            body = self._spool.read(path)
            outcome = "refused" if body is None else self._post(client, body)
            if outcome == "wait":
                return
            self._spool.remove(path)
            self._count_spooled(outcome, 0 if body is None else records_of(path))
            if not self._queue.empty():
                # Take what the agent reported meanwhile: memory is bounded, too.
                self._deliver(client, self._take())

    def _may_send(self) -> bool:
        now = time.monotonic()
        return now >= self._retry_at and now < self._deadline

    def _post(self, client: httpx.Client, body: bytes) -> Outcome:
        try:
            left = max(0.1, min(10.0, self._deadline - time.monotonic()))
            response = client.post(self._url, content=body, headers=self._headers, timeout=left)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            self._warn(f"the server at {self._url} cannot be reached", error)
            return self._back_off(None)
        if response.is_success:
            self._wait, self._retry_at = FIRST_WAIT, 0.0
            reasons = _refusals(response)
            if not reasons:
                self._warned.clear()
                return "sent"
            self._warn(f"the server refused some records: {reasons[0][:200]}", None)
            self._refused = len(reasons)
            return "sent"
        if response.status_code in {400, 413, 422}:
            self._warn(f"the server refused records: {response.text[:200]}", None)
            return "refused"
        self._warn(f"the server answered {response.status_code}", None)
        return self._back_off(response.headers.get("retry-after"))

    def _back_off(self, retry_after: str | None) -> Outcome:
        seconds = _seconds(retry_after)
        self._retry_at = time.monotonic() + (self._wait if seconds is None else seconds)
        self._wait = min(LONGEST_WAIT, self._wait * 2)
        return "wait"

    def _count(self, outcome: Outcome, records: int) -> None:
        with self._lock:
            match outcome:
                case "sent":
                    self._add_sent(records)
                case "spooled" | "wait":
                    self._spooled += records
                case "refused":
                    self._dropped += records
            self._settled += records
            self._lock.notify_all()

    def _count_spooled(self, outcome: Outcome, records: int) -> None:
        """Count records that waited on disk. `flush` does not wait for them."""
        with self._lock:
            if outcome == "sent":
                self._add_sent(records)
            else:
                self._dropped += records

    def _add_sent(self, records: int) -> None:
        """Count an accepted batch. The server may have refused some of its records alone."""
        refused, self._refused = min(self._refused, records), 0
        self._sent += records - refused
        self._dropped += refused

    def _warn(self, message: str, error: Exception | None) -> None:
        """Log each problem once until the server accepts records again."""
        key = message.split(":", maxsplit=1)[0]
        if key not in self._warned:
            self._warned.add(key)
            _logger.warning("%s%s", message, f": {error}" if error else "")


def _body(batch: Sequence[bytes]) -> bytes:
    return gzip.compress(b'{"records":[' + b",".join(batch) + b"]}", compresslevel=1)


def _refusals(response: httpx.Response) -> Sequence[str]:
    """Return why the server refused some records of a batch that it accepted."""
    try:
        answer: object = response.json()
    except ValueError:
        return ()
    items: object = (
        cast("Mapping[str, object]", answer).get("refused") if isinstance(answer, dict) else None
    )
    return [str(item) for item in cast("list[object]", items)] if isinstance(items, list) else ()


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, at most an hour, or None."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return min(3600.0, max(0.0, seconds))
