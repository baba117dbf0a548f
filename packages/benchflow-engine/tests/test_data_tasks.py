"""Tasks that are data: their selection, their directories and their digests."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import DataTask, TaskConfig, TaskError, TaskSplit, UsageError
from benchflow_engine.data_tasks import (
    DataSource,
    data_source,
    load_data_tasks,
    toml_text,
    write_data_task,
)
from benchflow_engine.task_formats import runnable_task, runnable_tasks
from benchflow_kernel import Registry, load_task
from hypothesis import given
from hypothesis import strategies as st


class Numbers:
    """A finite split and an endless one."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        return [TaskSplit(name="few", size=250), TaskSplit(name="all", size=None)]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        end = start + limit if split == "all" else min(250, start + limit)
        return [number(at) for at in range(start, end)]


def number(at: int, **data: Any) -> DataTask:
    config = TaskConfig.model_validate(
        {"name": f"numbers/n{at}", "environment": {"provider": "numbers"}}
    )
    return DataTask(config=config, instruction=f"Find {at}.\n", data={"at": at, **data})


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names, resolve = Registry.names, Registry.resolve

    def own_names(self: Registry, group: str) -> list[str]:
        return ["numbers"] if group == "benchflow.task_sources" else names(self, group)

    def own_resolve(self: Registry, group: str, name: str) -> object:
        return Numbers if group == "benchflow.task_sources" else resolve(self, group, name)

    monkeypatch.setattr(Registry, "names", own_names)
    monkeypatch.setattr(Registry, "resolve", own_resolve)


@pytest.mark.usefixtures("numbers")
def test_one_task_of_an_endless_split_is_loaded_by_its_index() -> None:
    task = runnable_task("numbers://host:80/set?split=all&index=1000000")
    assert (task.id, task.instruction) == ("numbers/n1000000", "Find 1000000.\n")
    assert task.config.environment.provider == "numbers"
    # The directory alone gives the same task to another process.
    assert load_task(task.path) == task
    assert runnable_task("numbers://host:80/set?split=all&index=1000000") == task


@pytest.mark.usefixtures("numbers")
def test_a_finite_split_is_read_to_its_end() -> None:
    found = runnable_tasks("numbers://x?split=few&start=120")
    assert [task.id for task in found.tasks] == [f"numbers/n{at}" for at in range(120, 250)]
    assert len({task.digest for task in found.tasks}) == 130


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("split=all", "no known end"),
        ("", "has the splits few, all"),
        ("split=other", "has the splits few, all"),
        ("split=few&start=250", "no task from number 250"),
        ("split=few&split=all", "does not select"),
        ("spilt=few", "does not select"),
        ("split=few&limit=-1", "not a number"),
        ("split=few&limit=²", "not a number"),
        ("split=few&index=1&limit=2", "selects one task"),
    ],
)
def test_an_impossible_selection_is_refused(query: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        runnable_tasks(f"numbers://x?{query}")
    assert caught.value.hint


@pytest.mark.usefixtures("numbers")
def test_several_tasks_are_not_one_task() -> None:
    with pytest.raises(UsageError, match="holds 3 tasks") as caught:
        runnable_task("numbers://x?split=all&limit=3")
    assert "index" in (caught.value.hint or "")


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("path", ["tasks/one", "https://host/x", "other://x", "numbers:x", "C://"])
def test_other_sources_are_left_to_others(path: str) -> None:
    assert data_source(path) is None


@pytest.mark.usefixtures("numbers")
def test_a_stored_task_that_was_changed_is_refused() -> None:
    found = DataSource("numbers", Numbers(), "x", "few", 3, 1)
    (task,) = load_data_tasks(found)
    (task.path / "instruction.md").write_text("Do harm.\n")
    with pytest.raises(TaskError, match="was changed"):
        load_data_tasks(found)


def test_equal_tasks_have_equal_digests_and_other_data_have_others(tmp_path: Path) -> None:
    one = load_task(write_data_task(number(1, a=1, b=[None]), tmp_path))
    same = load_task(write_data_task(number(1, b=[None], a=1), tmp_path))
    other = load_task(write_data_task(number(1, a=2, b=[None]), tmp_path))
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_data_that_are_not_json_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(TaskError, match="cannot be written"):
        write_data_task(number(1, value=value), tmp_path)


_TOML = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(_TOML)
def test_every_json_value_without_null_is_written_as_toml(value: object) -> None:
    assert tomllib.loads(f"x = {toml_text(value)}")["x"] == value
