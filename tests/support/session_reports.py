"""One summary of several nox sessions: their times, slowest tests, reruns and failures.

As a plugin of pytest, write a report of one session: `pytest --report-to FILE.json`. As a program,
print the summary of a directory: `lanes/*.json` is what `nox --report` writes, one file a lane, and
`tests/SESSION.json` is what this plugin writes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SLOWEST = 20
QUOTED = 30
"""Lines of a message that the summary quotes: the first one, and the last ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--report-to",
        type=Path,
        metavar="FILE",
        help="write each test's times, every rerun and failure to FILE, as JSON (default: none)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--report-to"):
        config.pluginmanager.register(TestReports(path))


class TestReports:
    """Collect what pytest reports of each test, and write the collection at the end."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._processor: defaultdict[str, float] = defaultdict(float)
        self._processor_before = 0.0
        self._reruns: list[tuple[str, str]] = []
        self._failures: list[tuple[str, str]] = []
        self._was_rerun = False

    def pytest_runtest_logstart(self) -> None:
        self._processor_before = _processor_seconds()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._processor[nodeid] += _processor_seconds() - self._processor_before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that ran twice took the time of both runs.
        self._seconds[report.nodeid] += report.duration
        if str(report.outcome) in ("rerun", "failed"):
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else report.longreprtext
            kept = self._failures if report.failed else self._reruns
            self._was_rerun = not report.failed
            kept.append((report.nodeid, f"{report.when}: {why.strip()}"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.append((report.nodeid, f"collection: {report.longreprtext.strip()}"))

    def pytest_runtest_setup(self) -> None:
        """Drop what a failed attempt left open, so that it cannot fail the attempt that counts."""
        if self._was_rerun:
            self._was_rerun = False
            sys.last_value = sys.last_traceback = sys.last_exc = None
            with warnings.catch_warnings(action="ignore"):
                gc.collect()

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "seconds": self._seconds,
            "processor": self._processor,
            "reruns": self._reruns,
            "failures": self._failures,
        }
        self._path.write_text(json.dumps(report))


_elsewhere = [0.0]


def add_processor_seconds(seconds: float) -> None:
    """Count processor time of a process that is not a child of this one."""
    _elsewhere[0] += seconds


def _processor_seconds() -> float:
    """Return the processor time of this process and of its descendants that were waited for."""
    return sum(os.times()[:4]) + _elsewhere[0]


@dataclass(frozen=True, slots=True)
class Session:
    """A session as nox reports it, and the report of its tests where pytest ran."""

    name: str
    result: str
    duration: float
    seconds: dict[str, float]
    processor: dict[str, float]
    reruns: list[tuple[str, str]]
    failures: list[tuple[str, str]]


_NO_TESTS: dict[str, Any] = {"seconds": {}, "processor": {}, "reruns": [], "failures": []}


def read_sessions(directory: Path) -> list[Session]:
    """Read the reports in `directory`. Sessions of a lane that was killed have no result of nox."""
    lanes = [json.loads(path.read_text()) for path in sorted(directory.glob("lanes/*.json"))]
    results = {
        entry["signatures"][0]: (entry["result"], entry["duration"])
        for lane in lanes
        for entry in lane["sessions"]
    }
    tests: dict[str, dict[str, Any]] = {
        path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("tests/*.json"))
    }
    sessions = []
    for name in [*results, *(name for name in tests if name not in results)]:
        report = tests.get(name, _NO_TESTS)
        result, duration = results.get(name, ("no result", sum(report["seconds"].values())))
        sessions.append(Session(name, result, duration, **report))
    return sessions


def summary(sessions: list[Session]) -> str:
    """Return the text for people: sessions, slowest tests, reruns, failures."""
    lines = ["", f"{'minutes':>7}  {'CPU':>7}  {'tests':>5}  {'reruns':>6}  session"]
    for session in sorted(sessions, key=lambda s: -s.duration):
        failed = "" if session.result == "success" else f"  {session.result.upper()}"
        times = (_minutes(session.duration), _minutes(sum(session.processor.values())))
        counts = f"{len(session.seconds):>5}  {len(session.reruns):>6}"
        lines.append(f"{times[0]:>7}  {times[1]:>7}  {counts}  {session.name}{failed}")
    tests = [(s.seconds[test], s.name, test) for s in sessions for test in s.seconds]
    lines += _first(tests, f"slowest of {len(tests)} tests")
    busy = [(s.processor[test], s.name, test) for s in sessions for test in s.processor]
    lines += _first(busy, "tests that need the most processor time")
    for word in ("rerun", "failure"):
        listed = [(s.name, test, why) for s in sessions for test, why in getattr(s, f"{word}s")]
        lines += ["", f"{word}s: {len(listed)}"]
        for name, test, why in listed:
            lines += [f"  {word.upper()} {test}  [{name}]", *_quoted(why)]
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _first(tests: list[tuple[float, str, str]], what: str) -> list[str]:
    first = sorted(tests, reverse=True)[:SLOWEST]
    lines = ["", f"{'seconds':>7}  the {len(first)} {what}"]
    return lines + [f"{seconds:7.1f}  {test}  [{name}]" for seconds, name, test in first]


def _quoted(why: str) -> list[str]:
    lines = why.splitlines()
    kept = lines if len(lines) <= QUOTED else [*lines[:1], "...", *lines[1 - QUOTED :]]
    return [f"    {line[:200]}" for line in kept]


if __name__ == "__main__":
    print(summary(read_sessions(Path(sys.argv[1]))))
