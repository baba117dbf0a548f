"""The sets of tasks that a server offers."""

from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.scaffold import write_task
from benchflow_tool_sessions import TaskServerSettings, TaskSet


def test_tasks_without_directories_of_splits_are_the_split_train(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_task(tmp_path / "My Tasks" / name)
    found = TaskSet.read(str(tmp_path / "My Tasks"))
    assert found.name == "my-tasks"
    assert {split: [task.id for task in tasks] for split, tasks in found.tasks.items()} == {
        "train": ["one", "two"]
    }


def test_directories_of_splits_are_splits_and_one_of_them_can_be_chosen(tmp_path: Path) -> None:
    write_task(tmp_path / "train/one")
    write_task(tmp_path / "test/two")
    found = TaskSet.read(f"claws={tmp_path}")
    assert (found.name, list(found.tasks)) == ("claws", ["train", "test"])
    assert [task.id for task in found.all] == ["one", "two"]
    chosen = TaskSet.read(str(tmp_path), split="test")
    assert [task.id for task in chosen.all] == ["two"]
    with pytest.raises(UsageError, match="does not have the split 'dev'"):
        TaskSet.read(str(tmp_path), split="dev")


def test_each_task_is_served_once(tmp_path: Path) -> None:
    write_task(tmp_path / "one")
    found = TaskSet.read(str(tmp_path / "one"))
    assert TaskServerSettings((found,)).tasks == found.all
    with pytest.raises(UsageError, match="two tasks have the id 'one'"):
        TaskServerSettings((found, found))
    with pytest.raises(UsageError, match="no task"):
        TaskServerSettings(())
