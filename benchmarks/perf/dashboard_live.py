"""Measures the live pages: from an event in a log to the pixels, readers at once, and SIGTERM.

Goals: an event is painted within 500 ms (p95); SIGTERM ends the server within 1 s while 50 streams
are open, also if one client does not read. `--part pixels` needs Chromium (`/usr/bin/chromium`).
"""

import argparse
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

from benchflow_contracts import Event, RolloutStarted, Step, StepFinished
from playwright.sync_api import sync_playwright
from report import emit

GOAL_PIXELS_MS = 500.0
GOAL_STOP_SEC = 1.0
STREAMS = 50
RATE = 2_000
"""The events per second of one log."""
PAINTED = """
globalThis.painted = [];
document.addEventListener("live:patched", () => {
  const seq = Number(document.querySelector("main").dataset.seq);
  // The frame callback runs before the paint, and the message after the paint.
  requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => globalThis.painted.push([seq, Date.now()]);
    port2.postMessage(0);
  });
});
"""
FRAME = re.compile(rb'"first":(\d+),"last":(\d+)')


class Log:
    """The log of a running rollout."""

    def __init__(self, jobs: Path, name: str) -> None:
        self.name, self.lines = name, 0
        (jobs / name).mkdir(parents=True)
        self._file = (jobs / name / "events.jsonl").open("a", buffering=1 << 20)
        started = RolloutStarted(seq=0, ts=0, rollout_id=name, task_id="made/task", root="n0")
        self._write([started])

    def add_steps(self, count: int = 1) -> None:
        """Add steps: each node has two children, so that the tree grows in both directions."""
        ts, first = time.time(), self.lines
        self._write(
            [
                StepFinished(
                    seq=number,
                    ts=ts,
                    node=f"n{number}",
                    parent=f"n{(number - 1) // 2}",
                    step=Step(
                        id=f"s{number}", message=f"step {number}", started_at=ts, finished_at=ts
                    ),
                )
                for number in range(first, first + count)
            ]
        )

    def add_step(self, parent: str) -> None:
        """Add a step below one node."""
        ts, number = time.time(), self.lines
        step = Step(id=f"s{number}", message=f"step {number}", started_at=ts, finished_at=ts)
        event = StepFinished(seq=number, ts=ts, node=f"n{number}", parent=parent, step=step)
        self._write([event])

    def add_lines(self, count: int) -> None:
        """Add lines that no page folds, so long that they fill the buffers of a stalled reader."""
        node = "n" * 200
        text = (
            f'{{"seq":{n},"kind":"step_started","node":"{node}"}}\n' for n in self._numbers(count)
        )
        self._file.write("".join(text))
        self._file.flush()

    def _numbers(self, count: int) -> range:
        self.lines += count
        return range(self.lines - count, self.lines)

    def _write(self, events: Sequence[Event]) -> None:
        self._file.write("".join(f"{event.model_dump_json()}\n" for event in events))
        self._file.flush()
        self.lines += len(events)


class Server:
    """`bench dashboard` in a process of its own."""

    def __init__(self, home: Path) -> None:
        self.jobs = home / "jobs"
        self.jobs.mkdir(exist_ok=True)
        bench = Path(sys.executable).with_name("bench")
        self.process = subprocess.Popen(
            [bench, "dashboard", "--jobs-dir", self.jobs, "--port", "0", "--no-open"],
            env={**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.url = next(
            line[line.index("http://") :].strip()
            for line in self.process.stderr
            if "http://" in line
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def cpu_sec(self) -> float:
        """Return the processor time of the server."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> tuple[float, str]:
        """Return the seconds from SIGTERM to the end, and what the server printed."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return time.monotonic() - began, errors


@dataclass(eq=False)
class Reader:
    """One open stream."""

    connection: socket.socket
    data: bytes = b""
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    is_complete: bool = False

    @classmethod
    def open(cls, server: Server, rollout: str, *, is_stalled: bool = False) -> Self:
        host, port = server.url.removeprefix("http://").split(":")
        connection = socket.socket()
        if is_stalled:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        request = f"GET /r/{rollout}/live HTTP/1.1\r\nHost: {host}\r\n\r\n"
        connection.sendall(request.encode())
        reader = cls(connection)
        while b"event: snapshot" not in reader.data:
            reader.data += connection.recv(4096)
        return reader

    def take(self) -> bool:
        """Read what has come. Return whether the stream is open."""
        chunk = self.connection.recv(1 << 20)
        self.data += chunk
        self.is_complete = self.is_complete or self.data.endswith(b"\r\n0\r\n\r\n")
        *whole, self.data = self.data.split(b"\n\n") if chunk else [self.data]
        for frame in whole:
            if match := FRAME.search(frame):
                self.ranges.append((int(match[1]), int(match[2])))
        return bool(chunk)


def read_until(readers: Sequence[Reader], is_over: Callable[[], bool]) -> None:
    """Read all streams until the condition holds, or all have ended."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.connection, selectors.EVENT_READ, reader)
        while not is_over() and selector.get_map():
            for key, _ in selector.select(0.02):
                if not key.data.take():
                    selector.unregister(key.fileobj)


def measure_readers(home: Path, seconds: float) -> bool:
    """50 readers, one of them stalled, and a log that grows quickly; then SIGTERM."""
    with Server(home) as server:
        log = Log(server.jobs, "quick")
        wait_for_page(server, "/r/quick")
        stalled = Reader.open(server, "quick", is_stalled=True)
        readers = [Reader.open(server, "quick") for _ in range(STREAMS - 1)]
        first, cpu, began = log.lines, server.cpu_sec(), time.monotonic()
        slowest: list[float] = []

        def grow() -> bool:
            due = int((time.monotonic() - began) * RATE) - (log.lines - first)
            if due > 0:
                at = time.monotonic()
                log.add_lines(due)
                slowest.append((time.monotonic() - at) * 1000)
            return time.monotonic() - began > seconds

        read_until(readers, grow)
        used = server.cpu_sec() - cpu
        end = time.monotonic() + 30
        read_until(
            readers,
            lambda: (
                time.monotonic() > end
                or all(each.ranges and each.ranges[-1][1] == log.lines - 1 for each in readers)
            ),
        )
        exact = sum(is_exact(each.ranges, first, log.lines - 1) for each in readers)
        emit(
            f"dashboard: {STREAMS} readers, one stalled, {RATE} events/s",
            [used / seconds],
            unit="cpu_sec_per_sec",
            readers_with_each_event_once=exact,
            events=log.lines - first,
            write_ms_max=round(max(slowest), 2),
        )
        is_stopped = stop(server, readers, f"{STREAMS} streams, one of them stalled", stalled)
    return is_stopped and exact == len(readers)


def is_exact(ranges: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Return whether ranges follow each other without a gap or an overlap."""
    begins = [first, *(end + 1 for _, end in ranges)]
    return begins[:-1] == [begin for begin, _ in ranges] and begins[-1] == last + 1


def measure_stop(home: Path) -> bool:
    """SIGTERM with 50 quiet streams."""
    with Server(home) as server:
        Log(server.jobs, "quiet")
        wait_for_page(server, "/r/quiet")
        readers = [Reader.open(server, "quiet") for _ in range(STREAMS)]
        return stop(server, readers, f"{STREAMS} streams")


def stop(
    server: Server, readers: Sequence[Reader], what: str, stalled: Reader | None = None
) -> bool:
    seconds, errors = server.stop()
    read_until(readers, lambda: False)
    clean = sum(each.is_complete for each in readers)
    for each in readers:
        each.connection.close()
    emit(
        f"dashboard: SIGTERM with {what}",
        [seconds],
        unit="s",
        bound=GOAL_STOP_SEC,
        clean=clean,
        tracebacks=errors.count("Traceback"),
        **({} if stalled is None else {"stalled_was_full": was_cut(stalled)}),
    )
    return seconds <= GOAL_STOP_SEC and clean == len(readers)


def was_cut(reader: Reader) -> bool:
    """Return whether the server could not send the end of a stream."""
    try:
        while reader.take():
            pass
    except ConnectionResetError:
        pass
    reader.connection.close()
    return not reader.is_complete


def wait_for_page(server: Server, path: str) -> None:
    for _ in range(600):
        try:
            with urlopen(server.url + path, timeout=60):
                return
        except HTTPError:
            time.sleep(0.1)
    raise TimeoutError(path)


def measure_pixels(home: Path, nodes: int, times: int) -> bool:
    """The time from the write of one event to the paint of the tree with the new node."""
    with Server(home) as server, sync_playwright() as playwright:
        log = Log(server.jobs, f"tree-{nodes}")
        log.add_steps(nodes - 1)
        wait_for_page(server, f"/r/{log.name}")
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.add_init_script(PAINTED)
        page.goto(f"{server.url}/r/{log.name}")
        page.wait_for_selector("#live-state[data-state=live]")
        page.wait_for_timeout(1_000)
        written: dict[int, float] = {}
        for number in range(times):
            log.add_steps()
            written[log.lines - 1] = time.time() * 1000
            # Not in step with the server, which looks each 100 ms.
            page.wait_for_timeout(800 + 37 * number % 400)
        page.wait_for_selector(f"main[data-seq='{log.lines - 1}']")
        page.wait_for_timeout(1_000)
        painted: list[tuple[int, float]] = page.evaluate("painted")
        browser.close()
    taken = [
        min(at for seq, at in painted if seq >= wanted) - began for wanted, began in written.items()
    ]
    emit(f"dashboard: event to pixel, {nodes} nodes", taken, bound=GOAL_PIXELS_MS)
    return quantiles(taken, n=20)[-1] <= GOAL_PIXELS_MS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=("pixels", "readers", "stop"), nargs="*")
    parser.add_argument("--nodes", type=int, nargs="*", default=[50, 500])
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    parts = set(options.part or ("pixels", "readers", "stop"))
    checks: list[Callable[[Path], bool]] = []
    if "stop" in parts:
        checks += [measure_stop] * 3
    if "readers" in parts:
        checks.append(lambda home: measure_readers(home, options.seconds))
    if "pixels" in parts:
        checks += [
            lambda home, nodes=nodes: measure_pixels(home, nodes, options.times)
            for nodes in options.nodes
        ]
    results: list[bool] = []
    for check in checks:
        with tempfile.TemporaryDirectory() as home:
            results.append(check(Path(home)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
