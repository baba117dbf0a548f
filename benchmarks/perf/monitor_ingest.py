"""Ingest of production traces: `bench monitor run` beside 50 readers, one of them stalled.

Senders post OTLP requests of 500 spans at a fixed rate. Meanwhile 49 readers take the live stream
of the monitor page, one reader does not read, and a client loads pages. At the end, each accepted
span must be in the database, and each rollout must be closed and scored.

The rate is what this machine gives beside other work: the line says the rate that was reached. The
number to compare is the processor time of the server for each span. Processor time and memory are
those of the server and of its process that folds traces.

One JSON line on stdout.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from report import emit

SPANS = 500
OF_ROLLOUT = 20
READERS = 50
GOAL_RATE = 10_000
GOAL_PAGE_MS = 150.0
GOAL_DRIFT = 0.05
PROTOBUF = {"content-type": "application/x-protobuf"}
STORED = "SELECT count(*) FROM monitor_spans"
SCORED = (
    "SELECT count(*) FROM monitor_rollouts r WHERE closed = 1 AND EXISTS"
    " (SELECT 1 FROM monitor_rewards w WHERE w.rollout = r.id AND w.value IS NOT NULL)"
)
_TRACE, _TIME = b"\xf0\xa5traceX", 0x1122334455667788


def request(content: int) -> bytes:
    """Return a request whose traces and times are placeholders."""
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    for key, value in (("service.name", "shop"), ("service.version", "1")):
        resource.resource.attributes.add(key=key).value.string_value = value
    spans = resource.scope_spans.add().spans
    for number in range(SPANS):
        rollout, step = divmod(number, OF_ROLLOUT)
        span = spans.add(
            trace_id=_TRACE + rollout.to_bytes(8, "big"),
            span_id=(step + 1).to_bytes(8, "big"),
            parent_span_id=b"" if step == 0 else (1).to_bytes(8, "big"),
            start_time_unix_nano=_TIME,
            end_time_unix_nano=_TIME,
        )
        for key, value in (chat if step % 2 == 0 else tool)(step, content).items():
            span.attributes.add(key=key).value.string_value = value
    return message.SerializeToString()


def chat(step: int, content: int) -> dict[str, str]:
    call = {"type": "tool_call", "id": f"c{step}", "name": "find", "arguments": '{"q": "x"}'}
    text = {"type": "text", "content": "look there " * (content // 11)}
    answer = [{"role": "assistant", "parts": [text, call]}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.output.messages": json.dumps(answer),
    }


def tool(step: int, content: int) -> dict[str, str]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "find",
        "gen_ai.tool.call.id": f"c{step - 1}",
        "gen_ai.tool.call.result": "a result " * (content // 9),
    }


@dataclass
class Sent:
    """What one sender did."""

    spans: int = 0
    busy: int = 0
    """Answers with status 429 or 503. The request was sent again."""
    latencies: list[float] = field(default_factory=list[float])


def send(
    port: int, body: bytes, number: int, rate: float, seconds: float, result: Callable
) -> None:
    """Post requests at a rate until the time is over, each until it is accepted."""
    sent = Sent()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    began, count = time.monotonic(), 0
    while (due := began + count * SPANS / rate) < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() > began + seconds:
            break
        trace = bytes([0xF0, number]) + count.to_bytes(6, "big")
        now = time.time_ns().to_bytes(8, "little")
        made = body.replace(_TRACE, trace).replace(_TIME.to_bytes(8, "little"), now)
        while True:
            at = time.monotonic()
            connection.request("POST", "/v1/traces", made, PROTOBUF)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            assert answer.status in {429, 503}, answer.status
            sent.busy += 1
            time.sleep(float(answer.headers["retry-after"]))
        sent.latencies.append((time.monotonic() - at) * 1000)
        sent.spans += SPANS
        count += 1
    result(sent)


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


class Server:
    """`bench monitor run` as a process."""

    def __init__(self, home: Path) -> None:
        self.database = home / "monitor.db"
        (home / "jobs").mkdir()
        (home / "monitor.toml").write_text("grace_sec = 5\n")
        bench = Path(sys.executable).with_name("bench")
        words = ["monitor", "run", "--port", "0", "--no-open", "--database", self.database]
        self.process = subprocess.Popen(
            [bench, *words],
            cwd=home,
            env={**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = next(line for line in self.process.stderr if "http://" in line)
        self.port = int(line.strip().rpartition(":")[2].strip("/ "))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def cpu_sec(self) -> float:
        return sum(map(cpu_sec, self._pids()))

    def rss_mb(self) -> float:
        return sum(map(rss_mb, self._pids()))

    def _pids(self) -> list[int]:
        """Return the server and the process that folds the traces."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [self.process.pid, *map(int, text.split())]

    def count(self, sql: str) -> int:
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=60)
        try:
            return connection.execute(sql).fetchone()[0]
        finally:
            connection.close()


class Readers:
    """Open live streams, read in a thread. The first one is never read."""

    def __init__(self, port: int) -> None:
        self._connections = [self._open(port, is_stalled=n == 0) for n in range(READERS)]
        self.bytes = 0
        self.frames = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @staticmethod
    def _open(port: int, *, is_stalled: bool) -> socket.socket:
        connection = socket.socket()
        if is_stalled:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /live?on=monitor&on=runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return connection

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self._connections[1:]:
                selector.register(connection, selectors.EVENT_READ, connection)
            while not self._stop.is_set() and selector.get_map():
                for key, _ in selector.select(0.2):
                    chunk = key.data.recv(1 << 16)
                    self.bytes += len(chunk)
                    self.frames += chunk.count(b"event: topic")
                    if not chunk:
                        selector.unregister(key.fileobj)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()


def load(port: int, path: str) -> float:
    """Return the milliseconds of one page."""
    began = time.monotonic()
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
        answer.read()
    return (time.monotonic() - began) * 1000


Told = tuple[list["Sent"], float]
"""What all senders tell, and when the last one ended."""


@dataclass
class Load:
    """What was seen while the senders sent."""

    pages: dict[str, list[float]] = field(
        default_factory=lambda: {"/": [], "/monitor?window=1h": []}
    )
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def watch(self, server: Server, sending: "Future[Told]", every: float) -> None:
        """Load pages and read the memory until the senders have ended."""
        began = time.monotonic()
        while not sending.done():
            for path, times in self.pages.items():
                times.append(load(server.port, path))
            self.memory.append((time.monotonic() - began, server.rss_mb()))
            time.sleep(every)

    def facts(self, took: float) -> dict[str, object]:
        # The first fifth warms up: caches, pools and the page cache of SQLite.
        warm = [rss for at, rss in self.memory if at > took / 5] or [self.memory[-1][1]]
        part = max(1, len(warm) // 5)
        drift = median(warm[-part:]) / median(warm[:part]) - 1
        return {
            "page_ms_p50": {path: round(median(times), 1) for path, times in self.pages.items()},
            "page_ms_p95": {
                path: round(quantiles(times, n=20)[-1] if len(times) > 1 else times[0], 1)
                for path, times in self.pages.items()
            },
            "page_goal_ms": GOAL_PAGE_MS,
            "rss_mb": [round(warm[0]), round(max(warm)), round(warm[-1])],
            "rss_drift": round(drift, 4),
            "rss_drift_goal": GOAL_DRIFT,
        }


def start_senders(port: int, options: argparse.Namespace) -> "Future[Told]":
    """Start the senders; return what they tell, and when the last one ended.

    It is read at once: a full pipe would hold a sender.
    """
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    body, rate = request(options.content), options.rate / options.senders
    senders = [
        context.Process(target=send, args=(port, body, n, rate, options.seconds, queue.put))
        for n in range(options.senders)
    ]
    for sender in senders:
        sender.start()
    pool = ThreadPoolExecutor(1)
    sending = pool.submit(lambda: ([queue.get() for _ in senders], time.monotonic()))
    pool.shutdown(wait=False)
    return sending


def measure(home: Path, options: argparse.Namespace) -> bool:
    server = Server(home)
    readers, seen = Readers(server.port), Load()
    began, cpu = time.monotonic(), server.cpu_sec()
    sending = start_senders(server.port, options)
    seen.watch(server, sending, options.page_every)
    results, ended = sending.result()
    took, at_end = ended - began, server.cpu_sec() - cpu
    end = time.monotonic() + 600
    while server.count("SELECT count(*) FROM monitor_open") and time.monotonic() < end:
        time.sleep(1)
    used, settled = server.cpu_sec() - cpu, time.monotonic() - began - took
    readers.close()
    spans = sum(one.spans for one in results)
    stored, scored = server.count(STORED), server.count(SCORED)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
    latencies = [each for one in results for each in one.latencies]
    emit(
        f"monitor: {READERS} readers, one stalled, {options.rate} spans/s asked",
        [used / spans * 1e6],
        unit="CPU us a span, stored, folded and scored",
        cpu_us_while_sending=round(at_end / spans * 1e6, 1),
        characters_a_text=options.content,
        seconds=round(took, 1),
        spans_per_sec=round(spans / took),
        goal_per_sec=GOAL_RATE,
        sent=spans,
        lost=spans - stored,
        rollouts=spans // OF_ROLLOUT,
        scored=scored,
        settled_sec=round(settled, 1),
        busy_answers=sum(one.busy for one in results),
        request_ms_p50=round(median(latencies), 1),
        request_ms_p99=round(quantiles(latencies, n=100)[-1], 1),
        frames_of_reader=readers.frames // (READERS - 1),
        **seen.facts(took),
    )
    return spans == stored and scored == spans // OF_ROLLOUT


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=GOAL_RATE)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--content", type=int, default=400, help="characters of each text")
    parser.add_argument("--page-every", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as home:
        return 0 if measure(Path(home), options) else 1


if __name__ == "__main__":
    sys.exit(main())
