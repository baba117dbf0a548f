"""The adapter's kit: the fake passes it, and it catches what breaks a promise."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts import TaskError
from benchflow_testing import AdapterSubject, check_adapter
from benchflow_testing.fakes import (
    FakeTaskAdapter,
    write_broken_task,
    write_fake_task,
)


def failed(adapter) -> set[str]:
    subject = AdapterSubject(adapter, write_fake_task, write_broken_task)
    results = asyncio.run(check_adapter(subject))
    assert {result.status for result in results} <= {"passed", "failed"}
    return {result.name for result in results if result.status == "failed"}


def test_the_fake_keeps_every_promise():
    assert failed(FakeTaskAdapter()) == set()


class ClaimsNothing(FakeTaskAdapter):
    def claims(self, source):
        return False


class ClaimsEverything(FakeTaskAdapter):
    def claims(self, source):
        return True


class ListsOnlyTheFirst(FakeTaskAdapter):
    def list_tasks(self, source, *, dataset=None):
        return super().list_tasks(source, dataset=dataset)[:1]


class ClaimsNoTaskAlone(FakeTaskAdapter):
    def claims(self, source):
        return super().claims(source) and not Path(source, "fake.task").exists()


class StopsAtABrokenTask(FakeTaskAdapter):
    def list_tasks(self, source, *, dataset=None):
        listed = super().list_tasks(source, dataset=dataset)
        if not all(task.ok for task in listed):
            raise TaskError("broken")
        return listed


class DigestsThePath(FakeTaskAdapter):
    def _read(self, file):
        return super()._read(file).model_copy(update={"digest": str(file)})


class LeavesAMark(FakeTaskAdapter):
    def claims(self, source):
        claimed = super().claims(source)
        if claimed:
            (Path(source) / "mark").touch()
        return claimed


class SaysNothing(FakeTaskAdapter):
    def list_tasks(self, source, *, dataset=None):
        return super().list_tasks(source, dataset=dataset) if self.claims(source) else []


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ClaimsNothing, "tasks_of_its_format_are_claimed"),
        (ClaimsEverything, "other_paths_are_not_claimed"),
        (ListsOnlyTheFirst, "good_tasks_are_listed"),
        (ClaimsNoTaskAlone, "a_task_is_a_source_of_itself"),
        (StopsAtABrokenTask, "a_broken_task_does_not_end_the_listing"),
        (DigestsThePath, "the_same_task_has_the_same_digest"),
        (LeavesAMark, "listing_changes_nothing"),
        (SaysNothing, "a_source_without_tasks_is_an_error"),
    ],
)
def test_a_broken_adapter_is_caught(broken, promise):
    assert promise in failed(broken())
