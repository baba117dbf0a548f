"""Each test that the page about faults names exists, and each fault has a test or a reason."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/faults.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)


def functions_in(file: str) -> set[str]:
    """Return the names of the functions in the files of that name."""
    homes = [ROOT / name for name in ("tests", "packages", "apps")]
    paths = [path for home in homes for path in home.rglob(f"tests/**/{file}")]
    paths += (ROOT / "tests").rglob(file)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for tree in trees for n in ast.walk(tree) if isinstance(n, kinds)}


def test_each_named_test_exists() -> None:
    assert len(NAMED) > 40
    known = {file: functions_in(file) for file, _ in NAMED}
    assert [f"{file}::{name}" for file, name in NAMED if name not in known[file]] == []


def test_each_fault_of_the_matrix_has_a_test_or_a_reason() -> None:
    rows = re.findall(r"^\| (F\d+) \|.*\|.*\| (.*)\| (.*)\|$", TEXT, re.MULTILINE)
    assert [fault for fault, _, _ in rows] == [f"F{number}" for number in range(1, 21)]
    assert all("::" in test or reason.strip() for _, test, reason in rows)


def test_each_test_of_whole_jobs_is_on_the_page() -> None:
    shown = {name for file, name in NAMED if file == "test_job_faults.py"}
    assert {
        name for name in functions_in("test_job_faults.py") if name.startswith("test_")
    } == shown
