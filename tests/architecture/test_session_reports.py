"""The summary of several nox sessions names their times, slowest tests, reruns and failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "session_reports.py"

NOXFILE = """
import sys
import nox

def run(session, *args):
    report = f"--report-to=reports/tests/{session.name}.json"
    session.run(sys.executable, "-m", "pytest", "-p", "session_reports", report, *args)

@nox.session(python=False, venv_backend="none")
def first(session):
    run(session, "--reruns=1", "-W", "error", "test_first.py")

@nox.session(python=False, venv_backend="none")
@nox.parametrize("package", ["a", "b"])
def second(session, package):
    run(session, "test_second.py")

@nox.session(python=False, venv_backend="none")
def third(session):
    run(session, "test_third.py")
"""
THIRD = "import a_package_that_is_not_installed"
FIRST = """
from pathlib import Path
def test_passes_the_second_time():
    if not Path("tries").exists():
        # A file that stays open, in a cycle that only a collection of garbage closes.
        cycle = [Path("tries").open("w")]
        cycle.append(cycle)
        raise AssertionError("one try")
"""
SECOND = """
import subprocess
import sys
import pytest
SPIN = "import time\\nwhile time.process_time() < 1.2: pass"

@pytest.mark.parametrize("number", range(30))
def test_has_one_failure(number):
    if number == 7:
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert number
"""


@pytest.mark.timeout(180)
def test_a_summary_of_real_sessions(tmp_path: Path) -> None:
    for name, text in {
        "noxfile": NOXFILE,
        "test_first": FIRST,
        "test_second": SECOND,
        "test_third": THIRD,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    reports = tmp_path / "reports"
    (reports / "lanes").mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "nox", "--report", str(reports / "lanes" / "all.json")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parent)},
        check=False,
    )
    text = subprocess.check_output([sys.executable, PROGRAM, reports], text=True)
    sessions, slowest, busiest, reruns, failures = text.strip().split("\n\n")
    rows = {line.split(maxsplit=4)[4]: line.split()[2:4] for line in sessions.splitlines()[1:]}
    assert rows == {
        "first": ["1", "1"],
        "second(package='a')  FAILED": ["30", "0"],
        "second(package='b')  FAILED": ["30", "0"],
        "third  FAILED": ["0", "0"],
    }
    # A child that the test waited for counts, too.
    busy = [line.split(maxsplit=1) for line in busiest.splitlines()[1:3]]
    assert {test for _, test in busy} == {
        f"test_second.py::test_has_one_failure[7]  [second(package='{name}')]" for name in "ab"
    }
    assert all(float(seconds) >= 1.2 for seconds, _ in busy)
    assert slowest.startswith("seconds  the 20 slowest of 61 tests\n")
    assert len(slowest.splitlines()) == 21
    times = [float(line.split()[0]) for line in slowest.splitlines()[1:]]
    assert times == sorted(times, reverse=True)
    assert reruns.splitlines() == [
        "reruns: 1",
        "  RERUN test_first.py::test_passes_the_second_time  [first]",
        "    call: AssertionError: one try",
    ]
    assert failures.splitlines()[:3] == [
        "failures: 3",
        "  FAILURE test_second.py::test_has_one_failure[0]  [second(package='a')]",
        "    call: assert 0",
    ]

    assert "  FAILURE test_third.py  [third]" in failures
    assert "No module named 'a_package_that_is_not_installed'" in failures

    # A lane that was killed leaves the reports of its tests alone.
    (reports / "lanes" / "all.json").unlink()
    text = subprocess.check_output([sys.executable, PROGRAM, reports], text=True)
    assert "second(package='a')  NO RESULT" in text
    assert text.strip().endswith(f"{reruns}\n\n{failures}")
