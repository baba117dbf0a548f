"""Tasks of other formats, brought to a directory and held to what they were."""

import json
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_engine.task_formats import runnable_tasks


def write_task(root: Path, toml: str = "") -> None:
    files = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM debian:12\n",
        "tests/test.sh": "#!/bin/sh\ntrue\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_task(tmp_path / "from" / "good")
    write_task(tmp_path / "from" / "gpu", "[environment]\ngpus = 1\n")
    write_task(tmp_path / "from" / "bad", "[agent")
    return tmp_path / "from"


def test_readable_tasks_are_imported_and_locked(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "import", str(source), str(tmp_path / "to"), "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert sorted(told["tasks"]) == ["good", "gpu"]
    assert [task["id"] for task in told["refused"]] == ["bad"]
    lock = json.loads((tmp_path / "to" / "tasks.lock.json").read_text())
    assert lock["source"] == str(source)
    assert lock["tasks"]["good"]["digest"].startswith("sha256:")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == [
        "good",
        "gpu",
        "tasks.lock.json",
    ]
    assert (tmp_path / "to/good/tests/test.sh").read_text() == "#!/bin/sh\ntrue\n"


def test_a_brought_task_that_was_changed_is_refused(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    run(["tasks", "import", str(source / "good"), str(to)])
    assert [task.id for task in runnable_tasks(str(to)).tasks] == ["good"]
    (to / "good" / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    found = runnable_tasks(str(to))
    assert found.tasks == []
    assert "changed after its import" in found.refused[0].refusals[0].reason
    assert runnable_tasks(str(to / "good")).tasks == []


def test_nothing_is_replaced_unasked(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["tasks", "import", str(source / "good"), str(tmp_path / "to")]
    assert run(command) == 0
    (tmp_path / "to" / "good" / "instruction.md").write_text("Mine.\n")
    assert run(command) == 2
    assert "--overwrite" in capfd.readouterr().err
    assert (tmp_path / "to" / "good" / "instruction.md").read_text() == "Mine.\n"
    assert run([*command, "--overwrite"]) == 0
    assert (tmp_path / "to" / "good" / "instruction.md").read_text() == "Do it.\n"


def test_a_link_stays_a_link_and_brings_nothing_along(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not the task's\n")
    (source / "good" / "environment" / "data").symlink_to(secret)
    run(["tasks", "import", str(source / "good"), str(tmp_path / "to"), "--json"])
    found = [path for path in (tmp_path / "to").rglob("*") if path.name == "data"]
    assert all(path.is_symlink() for path in found)


def test_a_damaged_lock_is_named(source: Path, tmp_path: Path) -> None:
    (source / "tasks.lock.json").write_text("{")
    assert run(["tasks", "list", str(source)]) == 3


FOREIGN = [
    '{"version": 3, "tasks": {"good": {"hash": "abc"}}}',
    '{"schema_version": "2.0", "source": "x", "tasks": {}}',
    "[]",
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_lock_of_another_tool_refuses_no_task_and_is_not_replaced(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (source / "tasks.lock.json").write_text(text)
    assert [task.id for task in runnable_tasks(str(source)).tasks] == ["good"]
    assert "not a lock of BenchFlow" in caplog.text
    write_task(tmp_path / "more")
    assert run(["tasks", "import", str(tmp_path / "more"), str(source)]) == 2
    assert (source / "tasks.lock.json").read_text() == text


def test_a_lock_holds_the_tasks_of_its_collection_also_from_above(
    source: Path, tmp_path: Path
) -> None:
    to = tmp_path / "collections" / "set"
    run(["tasks", "import", str(source / "good"), str(to)])
    (to / "good" / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    found = runnable_tasks(str(to.parent))
    assert found.tasks == []
    assert "changed after its import" in found.refused[0].refusals[0].reason


def test_tasks_of_our_own_are_not_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "init", str(tmp_path / "own")]) == 0
    assert run(["tasks", "import", str(tmp_path / "own"), str(tmp_path / "to")]) == 2
    assert "copy BenchFlow's own tasks directly" in capfd.readouterr().err


def test_a_task_that_differs_from_its_dataset_is_not_imported(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    promised = "sha256:" + "0" * 64
    write_task(source / "good", '[task]\nname = "org/good"\n')
    (source / "dataset.toml").write_text(
        f'[dataset]\nname = "org/set"\n[[tasks]]\nname = "org/good"\ndigest = "{promised}"\n'
    )
    to = tmp_path / "to"
    assert run(["tasks", "import", str(source), str(to), "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert list(told["tasks"]) == ["gpu"]
    reasons = {task["id"]: task["refusals"][0]["reason"] for task in told["refused"]}
    assert f"{promised} was expected" in reasons["org/good"]
    assert sorted(path.name for path in to.iterdir()) == ["gpu", "tasks.lock.json"]
