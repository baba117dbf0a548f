"""What `benchflow-monitor` costs its program while the server is away, and what arrives after.

A program of steps reports each step. First the server is up, then it is away, then it is back. The
steps of the program are timed by the wall clock and by the processor time of the program's thread.
Each second step is not reported, so that steps with and without a report are timed under the same
load of the machine. The directory of waiting records has a small limit, so that records
are dropped; the client must count them exactly.

One JSON line for each part on stdout.
"""

import argparse
import gzip
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchflow_monitor import Monitor, MonitorLimits
from report import emit

GOAL_MS = 1.0
FIELDS: Any = {
    "prompt": "Where is my parcel? " * 5,
    "reasoning": "Look for the parcel in the list. " * 10,
    "message": "It arrives tomorrow. " * 20,
    "tool_calls": [{"id": "c1", "name": "track", "arguments": {"id": 7}}],
    "observations": [{"tool_call_id": "c1", "content": "at sea " * 40}],
    "usage": {"input_tokens": 31, "output_tokens": 6},
}


class Ingest:
    """A server that can go away, and keeps the number of each record."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                records = json.loads(gzip.decompress(body))["records"]
                ingest.seen.update(record["index"] for record in records)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Part:
    """The steps of a program for some time."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    spool: int = 0
    base: "Part | None" = None
    """The steps between these, which are not reported."""

    def run(self, seconds: float, rate: float, report: Callable[[], None], spool: Path) -> None:
        self.base = base = Part()
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            base.step(lambda: None)
            time.sleep(max(0.0, began + 0.5 / rate - time.monotonic()))
            self.step(report)
            if len(self.wall) % 50 == 0:
                files = spool.iterdir() if spool.exists() else ()
                self.spool = max(self.spool, sum(path.stat().st_size for path in files))
            time.sleep(max(0.0, began + 1 / rate - time.monotonic()))

    def step(self, report: Callable[[], None]) -> None:
        """Time one step of the program."""
        at, cpu = time.perf_counter(), time.thread_time()
        work()
        report()
        self.cpu.append((time.thread_time() - cpu) * 1000)
        self.wall.append((time.perf_counter() - at) * 1000)

    def facts(self) -> dict[str, Any]:
        assert self.base is not None
        p99, base_p99 = (quantiles(part.wall, n=100)[-1] for part in (self, self.base))
        cpu, base_cpu = (quantiles(part.cpu, n=100)[-1] for part in (self, self.base))
        return {
            "steps": len(self.wall),
            "p50": round(median(self.wall), 3),
            "p50_without": round(median(self.base.wall), 3),
            "p99": round(p99, 3),
            "p99_without": round(base_p99, 3),
            "cpu_p50": round(median(self.cpu), 3),
            "cpu_p50_without": round(median(self.base.cpu), 3),
            "cpu_p99": round(cpu, 3),
            "cpu_p99_without": round(base_cpu, 3),
            "goal_ms": GOAL_MS,
            "spool_bytes_max": self.spool,
        }


def work() -> None:
    """Be the step of a program: about a millisecond."""
    digest = b"x" * 4096
    for _ in range(120):
        digest = hashlib.sha256(digest * 8).digest() * 128


def measure(home: Path, options: argparse.Namespace) -> bool:
    ingest, spool = Ingest(), home / "spool"
    ingest.start()
    limits = MonitorLimits(spool_bytes=options.spool_kb * 1024)
    monitor = Monitor(f"http://127.0.0.1:{ingest.port}", service="s", spool=spool, limits=limits)
    rollout = monitor.rollout("r")
    up, away = Part(), Part()
    up.run(options.up_sec, options.rate, lambda: rollout.step(**FIELDS), spool)
    ingest.stop()
    away.run(options.away_sec, options.rate, lambda: rollout.step(**FIELDS), spool)
    ingest.start()
    began, end = time.monotonic(), time.monotonic() + 120
    while time.monotonic() < end and any(spool.iterdir()):
        time.sleep(0.05)
    monitor.flush(30)
    took = time.monotonic() - began
    monitor.close(30)
    stats = monitor.stats
    for name, part in (("up", up), ("away", away)):
        emit(f"monitor client: server {name}", part.wall, **part.facts())
    lost = stats.queued - len(ingest.seen)
    emit(
        f"monitor client: back after {options.away_sec:g} s",
        [took],
        unit="s until all is sent",
        queued=stats.queued,
        arrived=len(ingest.seen),
        dropped=stats.dropped,
        lost_and_not_counted=lost - stats.dropped,
        spool_limit=limits.spool_bytes,
    )
    return lost == stats.dropped and away.spool <= limits.spool_bytes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=50.0, help="steps of the program a second")
    parser.add_argument("--up-sec", type=float, default=20.0)
    parser.add_argument("--away-sec", type=float, default=60.0)
    parser.add_argument("--spool-kb", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        return 0 if measure(Path(home), options) else 1


if __name__ == "__main__":
    sys.exit(main())
