"""The conformance kit of a TaskAdapter."""

import hashlib
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import TaskError, UsageError
from benchflow_contracts.task_listing import TaskAdapter

from .check import Check, CheckFailedError, CheckResult, expect, expect_equal, promise, run_checks

_OWN = 'name = "own"\n[verifier]\ntype = "script"\n'


@dataclass(frozen=True, slots=True)
class AdapterSubject:
    """An adapter under test, and a function that writes tasks of its format into empty folders."""

    adapter: TaskAdapter
    write_good: Callable[[Path], None]
    write_broken: Callable[[Path], None]

    @contextmanager
    def tasks(self, *, good: Sequence[str] = (), broken: Sequence[str] = ()) -> Generator[Path]:
        """Make a directory with a folder for each of these tasks; removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="bf-tasks-") as name:
            for folder in (*good, *broken):
                (Path(name) / folder).mkdir()
                write = self.write_good if folder in good else self.write_broken
                write(Path(name) / folder)
            yield Path(name)


AdapterCheck = Check[AdapterSubject]


@promise()
async def its_tasks_are_claimed(subject: AdapterSubject) -> None:
    """It claims a directory of tasks of its format."""
    with subject.tasks(good=["a", "b"]) as path:
        expect(subject.adapter.claims(str(path)), "it does not claim its own tasks")


@promise()
async def nothing_else_is_claimed(subject: AdapterSubject) -> None:
    """It claims no missing path, no empty directory and no task of BenchFlow's own."""
    with subject.tasks() as path:
        expect(not subject.adapter.claims(str(path)), "it claims an empty directory")
        expect(not subject.adapter.claims(str(path / "none")), "it claims what is not there")
        (path / "own").mkdir()
        (path / "own" / "task.toml").write_text(_OWN, encoding="utf-8")
        (path / "own" / "instruction.md").write_text("Do it.\n", encoding="utf-8")
        expect(not subject.adapter.claims(str(path)), "it claims a task of BenchFlow's own")


@promise()
async def good_tasks_are_listed(subject: AdapterSubject) -> None:
    """Each task is listed once, with its directory, and nothing speaks against it."""
    with subject.tasks(good=["a", "b"]) as path:
        listed = subject.adapter.list_tasks(str(path))
        folders = sorted(task.path.resolve().name for task in listed if task.path)
        expect_equal(folders, ["a", "b"], "the folders that are listed")
        wrong = [refusal.reason for task in listed for refusal in task.refusals]
        expect(not wrong, f"good tasks are refused: {wrong}")


@promise()
async def one_bad_task_ends_no_listing(subject: AdapterSubject) -> None:
    """A broken task is listed with a reason and a remedy, and the good ones beside it."""
    with subject.tasks(good=["a", "c"], broken=["b"]) as path:
        listed = subject.adapter.list_tasks(str(path))
        expect_equal(sorted(task.ok for task in listed), [False, True, True], "which are good")
        told = [refusal for task in listed for refusal in task.refusals]
        expect(all(each.reason and each.hint for each in told), "a refusal says too little")


@promise()
async def the_same_task_has_the_same_digest(subject: AdapterSubject) -> None:
    """Where a task lies, and when it is read, is not in its digest."""
    with subject.tasks(good=["a", "b"]) as path:
        first, second = subject.adapter.list_tasks(str(path))
        expect_equal(second.digest, first.digest, "the digest of the same content")
        again = subject.adapter.list_tasks(str(path))
        expect_equal(list(again), [first, second], "the second listing")


@promise()
async def what_is_listed_as_good_is_loaded(subject: AdapterSubject) -> None:
    """A good task becomes a Task of the same directory and digest, marked with its format."""
    with subject.tasks(good=["a"]) as path:
        (listed,) = subject.adapter.list_tasks(str(path))
        task = subject.adapter.load_task(path / "a")
        expect_equal(task.digest, listed.digest, "the digest of the loaded task")
        expect_equal(task.format, listed.format, "its format")
        expect_equal(task.path, (path / "a").resolve(), "its directory")
        prompts = [task.instruction, *(step.instruction for step in task.steps)]
        expect(any(prompts), "it asks for nothing")


@promise()
async def what_is_refused_is_not_loaded(subject: AdapterSubject) -> None:
    """A broken task, and a folder without one, raise `TaskError` with a remedy."""
    with subject.tasks(broken=["b"]) as path:
        for folder in (path / "b", path / "none"):
            try:
                task = subject.adapter.load_task(folder)
            except TaskError as error:
                expect(bool(error.hint), "the refusal has no remedy")
                continue
            raise CheckFailedError(f"{folder.name!r} was loaded as {task.id!r}")


@promise()
async def listing_changes_nothing(subject: AdapterSubject) -> None:
    """The tasks' directory is read only."""
    with subject.tasks(good=["a"], broken=["b"]) as path:
        before = _picture(path)
        subject.adapter.claims(str(path))
        subject.adapter.list_tasks(str(path))
        subject.adapter.load_task(path / "a")
        expect_equal(_picture(path), before, "the directory after the listing")


@promise()
async def a_source_without_tasks_is_an_error(subject: AdapterSubject) -> None:
    """What is not there, or holds no task, raises `TaskError` or `UsageError`."""
    with subject.tasks() as path:
        for source in (path, path / "none"):
            try:
                found = subject.adapter.list_tasks(str(source))
            except (TaskError, UsageError):
                continue
            raise CheckFailedError(f"{source.name!r} gave {list(found)!r} instead of an error")


def _picture(path: Path) -> dict[str, str]:
    return {
        str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(path.rglob("*"))
        if each.is_file()
    }


_CHECKS: tuple[AdapterCheck, ...] = (
    its_tasks_are_claimed,
    nothing_else_is_claimed,
    good_tasks_are_listed,
    one_bad_task_ends_no_listing,
    the_same_task_has_the_same_digest,
    what_is_listed_as_good_is_loaded,
    what_is_refused_is_not_loaded,
    listing_changes_nothing,
    a_source_without_tasks_is_an_error,
)


def adapter_checks() -> list[AdapterCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_adapter(
    subject: AdapterSubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against an adapter.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
