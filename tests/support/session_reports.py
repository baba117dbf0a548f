"""One summary of several nox sessions: their times, their slowest tests, and every rerun.

As a plugin of pytest, write a report of one session: `pytest --report-to FILE.json`. As a program,
print the summary of a directory: `lanes/*.json` is what `nox --report` writes, one file a lane, and
`tests/SESSION.json` is what this plugin writes.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SLOWEST = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--report-to",
        type=Path,
        metavar="FILE",
        help="write the time of each test and every rerun to FILE, as JSON (default: no report)",
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
        self._reruns: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that ran twice took the time of both runs.
        self._seconds[report.nodeid] += report.duration
        if str(report.outcome) == "rerun":
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else report.longreprtext
            self._reruns.append((report.nodeid, f"{report.when}: {why.strip()}"))

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        report = {"seconds": self._seconds, "reruns": self._reruns}
        self._path.write_text(json.dumps(report))


@dataclass(frozen=True, slots=True)
class Session:
    """A session as nox reports it, and the report of its tests where pytest ran."""

    name: str
    result: str
    duration: float
    seconds: dict[str, float]
    reruns: list[tuple[str, str]]


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
        report = tests.get(name, {"seconds": {}, "reruns": []})
        seconds, reruns = report["seconds"], [(test, why) for test, why in report["reruns"]]
        result, duration = results.get(name, ("no result", sum(seconds.values())))
        sessions.append(Session(name, result, duration, seconds, reruns))
    return sessions


def summary(sessions: list[Session]) -> str:
    """Return the text for people: sessions, slowest tests, reruns."""
    lines = ["", f"{'minutes':>7}  {'tests':>5}  {'reruns':>6}  session"]
    for session in sorted(sessions, key=lambda s: -s.duration):
        failed = "" if session.result == "success" else f"  {session.result.upper()}"
        minutes = f"{int(session.duration) // 60}:{int(session.duration) % 60:02}"
        counts = f"{len(session.seconds):>5}  {len(session.reruns):>6}"
        lines.append(f"{minutes:>7}  {counts}  {session.name}{failed}")
    tests = [(s.seconds[test], s.name, test) for s in sessions for test in s.seconds]
    slowest = sorted(tests, reverse=True)[:SLOWEST]
    lines += ["", f"{'seconds':>7}  the {len(slowest)} slowest of {len(tests)} tests"]
    lines += [f"{seconds:7.1f}  {test}  [{name}]" for seconds, name, test in slowest]
    reruns = [(s.name, test, why) for s in sessions for test, why in s.reruns]
    lines += ["", f"reruns: {len(reruns)}"]
    for name, test, why in reruns:
        lines += [f"  RERUN {test}  [{name}]", f"    {why.splitlines()[0][:200]}"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary(read_sessions(Path(sys.argv[1]))))
