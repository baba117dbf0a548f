"""`bench tasks init` writes a task that loads."""

from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.scaffold import write_task
from benchflow_kernel import load_task


def test_the_new_task_loads(tmp_path: Path) -> None:
    write_task(tmp_path / "My Task!")
    task = load_task(tmp_path / "My Task!")
    assert task.id == "my-task-"
    assert (task.path / "tests/test.sh").stat().st_mode & 0o111


def test_an_existing_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="exists"):
        write_task(tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []
