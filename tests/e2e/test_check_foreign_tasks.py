"""`bench tasks check` runs tasks of Harbor where it is told to, on a real engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DONE = "#!/bin/sh\n[ -e done ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
SOLVE = "#!/bin/sh\ntouch done\n"


@pytest.fixture
def tasks(image: str, tmp_path: Path) -> Path:
    """A good task, one that pays nobody to work, one without a solution, one with steps."""
    pays = "#!/bin/sh\npython3 /srv/main.py\necho 1 > /logs/verifier/reward.txt\n"
    steps = "".join(f"[[steps]]\nname = '{name}'\n" for name in "ab")
    given = {
        "good": {"tests/test.sh": DONE, "solution/solve.sh": SOLVE},
        "pays": {"tests/test.sh": pays, "solution/solve.sh": SOLVE},
        "unsolved": {"tests/test.sh": DONE},
        "steps": {
            "task.toml": steps,
            "tests/test.sh": DONE,
            "steps/a/instruction.md": "Do it.\n",
            "steps/b/instruction.md": "Do it.\n",
            "steps/a/solution/solve.sh": SOLVE,
            "steps/b/solution/solve.sh": "#!/bin/sh\nrm done\n",
        },
    }
    for name, files in given.items():
        image_file = {"environment/Dockerfile": f"FROM {image}\nWORKDIR /srv\n"}
        plain = {"task.toml": "", "instruction.md": "Do it.\n"}
        for path, text in (plain | image_file | files).items():
            place = tmp_path / "tasks" / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    return tmp_path / "tasks"


def test_harbors_tasks_are_run_by_who_does_nothing_and_by_their_solution(
    bench: Callable[..., Any], tasks: Path
) -> None:
    rows = bench("tasks", "check", tasks, "--sandbox", "docker", "--json", code=1)
    found = {row["id"]: row for row in rows}
    got = {
        name: {run["agent"]: run["reward"] for run in row["runs"]} for name, row in found.items()
    }
    assert got == {
        "good": {"nop": 0.0, "oracle": 1.0},
        "pays": {"nop": 1.0, "oracle": 1.0},
        "unsolved": {"nop": 0.0},
        "steps": {"nop": 0.0, "oracle": 0.5},
    }
    assert {name for name, row in found.items() if row["ok"]} == {"good", "unsolved"}
    assert [line["line"] for line in found["pays"]["warnings"]] == [2]
    assert found["good"]["warnings"] == []


def test_without_a_sandbox_nothing_of_theirs_is_run(bench: Callable[..., Any], tasks: Path) -> None:
    rows = bench("tasks", "check", tasks, "--json")
    assert [row["runs"] for row in rows] == [[], [], [], []]
    assert [row["id"] for row in rows if row["warnings"]] == ["pays"]
