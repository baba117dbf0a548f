from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter, HostPolicy, load_harbor_task, read_directory
from benchflow_contracts import TaskError
from harbor_corpus import BAD, GOOD, TERMINAL_BENCH, task, without, write

HERE = HostPolicy()


def dataset(root: Path, digests: dict[str, str]) -> None:
    tasks = "".join(f'[[tasks]]\nname = "{n}"\ndigest = "{d}"\n' for n, d in digests.items())
    write(root, {"dataset.toml": f'[dataset]\nname = "org/set"\n{tasks}'})


def test_a_broken_task_does_not_end_the_listing(tmp_path: Path) -> None:
    for name, files in (GOOD | BAD).items():
        write(tmp_path / name, files)
    listed = {task.path.name: task for task in read_directory(tmp_path, HERE) if task.path}
    assert set(listed) == {*GOOD, *BAD}
    cannot = {"accelerators", "windows", "steps"}
    assert {name for name, found in listed.items() if found.ok} == set(GOOD) - cannot
    assert all(refusal.hint for found in listed.values() for refusal in found.refusals)


def test_a_task_that_cannot_be_run_is_listed_with_its_facts(tmp_path: Path) -> None:
    write(tmp_path / "w", GOOD["windows"])
    (found,) = read_directory(tmp_path, HERE)
    assert (found.name, found.format, found.facts["verifier"]) == ("w", "harbor", "shared")
    assert found.digest


def test_old_tasks_and_new_ones_lie_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "new", GOOD["minimal"])
    write(tmp_path / "old", TERMINAL_BENCH)
    write(tmp_path / "neither", {"README.md": ""})
    assert [t.format for t in read_directory(tmp_path, HERE)] == ["harbor", "terminal-bench"]


def test_a_task_is_a_listing_of_one(tmp_path: Path) -> None:
    (found,) = read_directory(write(tmp_path / "t", task()), HERE)
    assert found.name == "t"


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_tasks_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError):
        read_directory(tmp_path / name, HERE)


def test_tasks_must_match_the_digests_of_their_dataset(tmp_path: Path) -> None:
    write(tmp_path / "p", GOOD["package"])
    name, digest = "org/some-task.v2", load_harbor_task(tmp_path / "p").digest
    dataset(tmp_path, {name: digest})
    assert [task.ok for task in read_directory(tmp_path, HERE)] == [True]
    write(tmp_path / "p", {"tests/test.sh": "echo 1 > /logs/verifier/reward.txt # changed\n"})
    (found,) = read_directory(tmp_path, HERE)
    assert "was expected" in found.refusals[0].reason


def test_tasks_of_a_dataset_that_are_not_there_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "p", GOOD["package"])
    dataset(tmp_path, {"org/other": "sha256:" + "0" * 64})
    assert [(t.name, t.ok) for t in read_directory(tmp_path, HERE)] == [
        ("org/some-task.v2", True),
        ("org/other", False),
    ]


def test_a_malformed_dataset_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "p", GOOD["package"])
    dataset(tmp_path, {"org/other": "sha256:0"})
    with pytest.raises(TaskError, match=r"dataset\.toml:tasks\.0\.digest"):
        read_directory(tmp_path, HERE)


def test_tasks_of_collections_below_are_found_and_nothing_deeper(tmp_path: Path) -> None:
    write(tmp_path / "a" / "one", task())
    # What lies beside or inside of a task is not searched.
    write(tmp_path / "a" / "one" / "environment" / "inner", task())
    write(tmp_path / "a" / "other" / "two", task())
    write(tmp_path / "b" / "c" / "d" / "three", task())
    write(tmp_path / "b" / "c" / "e" / "f" / "four", task())
    write(tmp_path / ".git" / "five", task())
    found = read_directory(tmp_path, HERE)
    assert [t.name for t in found] == ["one", "three"]
    assert HarborAdapter().claims(str(tmp_path))


def test_a_collection_must_match_its_own_dataset(tmp_path: Path) -> None:
    write(tmp_path / "set" / "p", GOOD["package"])
    dataset(tmp_path / "set", {"org/some-task.v2": "sha256:" + "0" * 64})
    assert [t.ok for t in read_directory(tmp_path, HERE)] == [False]


def test_links_to_collections_are_followed_only_in_a_directory_of_ones_own(
    tmp_path: Path,
) -> None:
    write(tmp_path / "elsewhere" / "t", task())
    (tmp_path / "all" / "real").mkdir(parents=True)
    (tmp_path / "all" / "set").symlink_to("../elsewhere")
    # A circle is searched once.
    (tmp_path / "all" / "real" / "up").symlink_to("../../all")
    found = read_directory(tmp_path / "all", HERE)
    assert [t.name for t in found] == ["t"]
    with pytest.raises(TaskError, match="no task in"):
        read_directory(tmp_path / "all", HERE, own=False)


def test_links_to_tasks_count_only_in_a_directory_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", task())
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "t").symlink_to("../elsewhere")
    assert [t.ok for t in read_directory(tmp_path / "set", HERE)] == [True]
    assert [t.ok for t in read_directory(tmp_path / "set", HERE, own=False)] == [False]


NATIVE = 'name = "mine"\n'


@pytest.mark.parametrize(
    ("files", "claimed"),
    [
        ({"a": task(NATIVE)}, False),
        ({"a": task("[broken\n"), "b": task(NATIVE)}, False),
        ({"a": task("[broken\n"), "b": task()}, True),
        ({"a": TERMINAL_BENCH}, True),
        ({"a": without(task(), "task.toml")}, False),
    ],
)
def test_the_adapter_claims_directories_of_its_formats(
    tmp_path: Path, files: dict[str, dict[str, str]], claimed: bool
) -> None:
    for name, each in files.items():
        write(tmp_path / name, each)
    assert HarborAdapter().claims(str(tmp_path)) is claimed


def test_the_adapter_claims_no_path_that_is_not_there(tmp_path: Path) -> None:
    assert not HarborAdapter().claims(str(tmp_path / "missing"))
    assert not HarborAdapter().claims(str(tmp_path / "missing.json"))
