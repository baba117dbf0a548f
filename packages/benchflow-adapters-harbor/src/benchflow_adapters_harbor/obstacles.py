"""All that keeps a task, once read, from being run here."""

from collections.abc import Iterator

from benchflow_contracts import TaskError, TaskRefusal

from .lowering import lower, unsaid
from .machine import Machine, refusals
from .task import HarborTask


def obstacles(task: HarborTask, machine: Machine) -> Iterator[TaskRefusal]:
    """Yield what `machine` has not got, what no Task can say, and values beyond ours."""
    found = [*refusals(task, machine), *unsaid(task)]
    yield from found
    if not found:
        try:
            lower(task)
        except TaskError as error:
            yield TaskRefusal(where=error.where, reason=str(error.args[0]), hint=error.hint)
