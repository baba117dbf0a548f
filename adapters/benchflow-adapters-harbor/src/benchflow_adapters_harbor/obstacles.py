"""All that keeps a task, once read, from being run here."""

from collections.abc import Iterator

from benchflow_contracts import TaskError, TaskRefusal

from .client_service import client_name
from .lowering import lower, unsaid
from .machine import Machine, refusals
from .task import HarborTask


def obstacles(task: HarborTask, machine: Machine) -> Iterator[TaskRefusal]:
    """Yield what `machine` has not got, what no Task can say, and values beyond ours."""
    found = [*refusals(task, machine), *unsaid(task)]
    yield from found
    if not found:
        try:
            lower(task, machine)
        except TaskError as error:
            where = error.where
            if where is not None and task.terminal_bench is not None:
                # As its author wrote it: `main` is the name in the layout.
                where = where.replace(":services.main", f":services.{client_name(task)}")
            yield TaskRefusal(where=where, reason=str(error.args[0]), hint=error.hint)
