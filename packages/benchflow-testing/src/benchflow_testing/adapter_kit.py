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
    """An adapter under test, and functions that write tasks of its format into empty folders."""

    adapter: TaskAdapter
    write_good: Callable[[Path], None]
    write_broken: Callable[[Path], None]

    @contextmanager
    def tasks(self, *, good: Sequence[str] = (), broken: Sequence[str] = ()) -> Generator[Path]:
        """Create a directory with a folder for each of these tasks, and delete it at the end."""
        with tempfile.TemporaryDirectory(prefix="bf-tasks-") as name:
            for folder in (*good, *broken):
                (Path(name) / folder).mkdir()
                write = self.write_good if folder in good else self.write_broken
                write(Path(name) / folder)
            yield Path(name)


AdapterCheck = Check[AdapterSubject]


@promise()
async def tasks_of_its_format_are_claimed(subject: AdapterSubject) -> None:
    """The adapter claims a directory of tasks of its format."""
    with subject.tasks(good=["a", "b"]) as path:
        expect(subject.adapter.claims(str(path)), "it does not claim its own tasks")


@promise()
async def other_paths_are_not_claimed(subject: AdapterSubject) -> None:
    """The adapter does not claim missing paths, empty directories and tasks of BenchFlow."""
    with subject.tasks() as path:
        expect(not subject.adapter.claims(str(path)), "it claims an empty directory")
        expect(not subject.adapter.claims(str(path / "none")), "it claims a missing path")
        (path / "own").mkdir()
        (path / "own" / "task.toml").write_text(_OWN, encoding="utf-8")
        (path / "own" / "instruction.md").write_text("Do it.\n", encoding="utf-8")
        expect(not subject.adapter.claims(str(path)), "it claims a task of BenchFlow")


@promise()
async def good_tasks_are_listed(subject: AdapterSubject) -> None:
    """Each task is listed once, with its directory and without refusals."""
    with subject.tasks(good=["a", "b"]) as path:
        listed = subject.adapter.list_tasks(str(path))
        folders = sorted(task.path.resolve().name for task in listed if task.path)
        expect_equal(folders, ["a", "b"], "the folders that are listed")
        wrong = [refusal.reason for task in listed for refusal in task.refusals]
        expect(not wrong, f"good tasks are refused: {wrong}")


@promise()
async def a_task_is_a_source_of_itself(subject: AdapterSubject) -> None:
    """The directory of one task is claimed, and listed as that task: `bench run` needs this."""
    with subject.tasks(good=["a", "b"]) as path:
        expect(subject.adapter.claims(str(path / "a")), "it does not claim a task's directory")
        among = {str(task.path): task for task in subject.adapter.list_tasks(str(path))}
        alone = list(subject.adapter.list_tasks(str(path / "a")))
        expect_equal(alone, [among[str(path / "a")]], "the listing of the task's directory")


@promise()
async def a_broken_task_does_not_end_the_listing(subject: AdapterSubject) -> None:
    """A broken task is listed with a reason and a remedy, and the other tasks are listed, too."""
    with subject.tasks(good=["a", "c"], broken=["b"]) as path:
        listed = subject.adapter.list_tasks(str(path))
        expect_equal(sorted(task.ok for task in listed), [False, True, True], "which are good")
        refusals = [refusal for task in listed for refusal in task.refusals]
        expect(
            all(each.reason and each.hint for each in refusals), "a refusal lacks reason or hint"
        )


@promise()
async def the_same_task_has_the_same_digest(subject: AdapterSubject) -> None:
    """The digest does not depend on the task's directory or on the time of reading."""
    with subject.tasks(good=["a", "b"]) as path:
        first, second = subject.adapter.list_tasks(str(path))
        expect_equal(second.digest, first.digest, "the digest of the same content")
        again = subject.adapter.list_tasks(str(path))
        expect_equal(list(again), [first, second], "the second listing")


@promise()
async def a_task_without_refusals_is_loaded(subject: AdapterSubject) -> None:
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
async def a_refused_task_is_not_loaded(subject: AdapterSubject) -> None:
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
    """Listing and loading do not change the tasks' directory."""
    with subject.tasks(good=["a"], broken=["b"]) as path:
        before = _picture(path)
        subject.adapter.claims(str(path))
        subject.adapter.list_tasks(str(path))
        subject.adapter.load_task(path / "a")
        expect_equal(_picture(path), before, "the directory after the listing")


@promise()
async def a_source_without_tasks_is_an_error(subject: AdapterSubject) -> None:
    """A missing or an empty directory raises `TaskError` or `UsageError`."""
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
    tasks_of_its_format_are_claimed,
    other_paths_are_not_claimed,
    good_tasks_are_listed,
    a_task_is_a_source_of_itself,
    a_broken_task_does_not_end_the_listing,
    the_same_task_has_the_same_digest,
    a_task_without_refusals_is_loaded,
    a_refused_task_is_not_loaded,
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
