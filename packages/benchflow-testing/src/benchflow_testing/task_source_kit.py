"""The conformance kit of a TaskSource."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchflow_contracts.errors import TaskError, UsageError
from benchflow_contracts.task_listing import DataTask, TaskSource, TaskSplit

from .check import (
    Check,
    CheckResult,
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
    run_checks,
)

_FEW = 4
"""The number of tasks that most checks read: a source may be slow."""
_MOST = 200


@dataclass(frozen=True, slots=True)
class TaskSourceSubject:
    """A source under test, and the address of a set of tasks that can be read."""

    source: TaskSource
    address: str
    unreadable: str | None = None
    """An address at which no set can be read. Nothing answers there, or no set has this name."""

    async def splits(self, address: str | None = None) -> Sequence[TaskSplit]:
        """Return the splits. The engine calls a source in a thread."""
        return await asyncio.to_thread(self.source.splits, address or self.address)

    async def tasks(self, split: str | None, start: int, limit: int) -> Sequence[DataTask]:
        """Return some tasks of the set."""
        return await asyncio.to_thread(
            self.source.tasks, self.address, split, start=start, limit=limit
        )


TaskSourceCheck = Check[TaskSourceSubject]


@promise()
async def splits_have_names_and_do_not_change(subject: TaskSourceSubject) -> None:
    """There is at least one split, each name is given once, and a second call says the same."""
    splits = await subject.splits()
    names = [split.name for split in splits]
    expect(names, "the set has no split")
    expect(all(names), "a split has no name")
    expect_equal(sorted(set(names)), sorted(names), "the names of the splits")
    expect_equal(list(await subject.splits()), list(splits), "the splits of a second call")


@promise()
async def tasks_come_in_a_fixed_order(subject: TaskSourceSubject) -> None:
    """Equal calls return equal tasks, and two pages are the same tasks as one of both sizes."""
    for split in await subject.splits():
        both = list(await subject.tasks(split.name, 0, _FEW))
        expect_equal(list(await subject.tasks(split.name, 0, _FEW)), both, "a second call")
        half = _FEW // 2
        pages = [*await subject.tasks(split.name, 0, half)]
        pages += await subject.tasks(split.name, half, half)
        expect_equal(pages, both, f"two pages of {split.name!r}")


@promise()
async def no_page_is_larger_than_its_limit(subject: TaskSourceSubject) -> None:
    """`tasks` returns at most `limit` tasks, and none for a limit of 0."""
    for split in await subject.splits():
        for limit in (0, 1, _FEW):
            page = await subject.tasks(split.name, 0, limit)
            expect(len(page) <= limit, f"{len(page)} tasks for a limit of {limit}")


@promise()
async def a_split_has_as_many_tasks_as_it_says(subject: TaskSourceSubject) -> None:
    """A split with a size has that many tasks. Behind its end are none."""
    sizes = {split.name: split.size for split in await subject.splits()}
    known = {name: size for name, size in sizes.items() if size is not None and size <= _MOST}
    if not known:
        raise CheckSkippedError(f"no split has a size of at most {_MOST}")
    for name, size in known.items():
        expect_equal(len(await subject.tasks(name, 0, size + 1)), size, f"tasks of {name!r}")
        expect_equal(len(await subject.tasks(name, size, 1)), 0, f"tasks behind {name!r}")


@promise()
async def tasks_of_one_split_are_different(subject: TaskSourceSubject) -> None:
    """No two tasks of a page have one name: the names are the ids of tasks in results."""
    for split in await subject.splits():
        names = [task.config.name for task in await subject.tasks(split.name, 0, _FEW)]
        expect_equal(sorted(set(names)), sorted(names), f"the names of tasks of {split.name!r}")


@promise()
async def a_task_names_the_environment_of_its_world(subject: TaskSourceSubject) -> None:
    """Each task has an `environment.provider`: a task that is data has no other world."""
    for split in await subject.splits():
        for task in await subject.tasks(split.name, 0, _FEW):
            provider = task.config.environment.provider
            expect(provider, f"the task {task.config.name!r} names no environment")


@promise()
async def an_unknown_split_is_a_usage_error(subject: TaskSourceSubject) -> None:
    """A split that the set does not have is refused."""
    await expect_error(UsageError, subject.tasks("no such split", 0, 1), "an unknown split")


def _without_unreadable(subject: TaskSourceSubject) -> str | None:
    return None if subject.unreadable else "no unreadable address was given"


@promise(lacks=_without_unreadable)
async def a_set_that_cannot_be_read_is_a_task_error(subject: TaskSourceSubject) -> None:
    """For an address without a set, `splits` raises TaskError."""
    await expect_error(TaskError, subject.splits(subject.unreadable), "an unreadable address")


_CHECKS: tuple[TaskSourceCheck, ...] = (
    splits_have_names_and_do_not_change,
    tasks_come_in_a_fixed_order,
    no_page_is_larger_than_its_limit,
    a_split_has_as_many_tasks_as_it_says,
    tasks_of_one_split_are_different,
    a_task_names_the_environment_of_its_world,
    an_unknown_split_is_a_usage_error,
    a_set_that_cannot_be_read_is_a_task_error,
)


def task_source_checks() -> list[TaskSourceCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_task_source(
    source: TaskSource,
    address: str,
    *,
    unreadable: str | None = None,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `source`, with the set of tasks at `address`.

    `unreadable` is an address at which no set can be read; without it one check is skipped.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    subject = TaskSourceSubject(source, address, unreadable)
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
