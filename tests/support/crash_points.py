"""Points of the code at which a test kills the runner of a job."""

import functools
import importlib
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class CrashPoint(NamedTuple):
    """A call of a function at which the process group of the caller is killed."""

    function: str
    """`MODULE:NAME`, as its caller looks it up."""
    side: Literal["before", "after"]
    call: int = 1
    """The number of the call, from 1."""

    def arm(self) -> None:
        """Kill this process and its group at the point."""
        module, _, path = self.function.partition(":")
        *names, last = path.split(".")
        owner = functools.reduce(getattr, names, importlib.import_module(module))
        setattr(owner, last, self._wrapped(getattr(owner, last)))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def is_due() -> bool:
            nonlocal calls
            calls += 1
            return calls == self.call

        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            due = is_due()
            if due and self.side == "before":
                os.killpg(0, signal.SIGKILL)
            result = function(*args, **options)
            if due and self.side == "after":
                os.killpg(0, signal.SIGKILL)
            return result

        @functools.wraps(function)
        async def awaiting(*args: Any, **options: Any) -> Any:
            due = is_due()
            if due and self.side == "before":
                os.killpg(0, signal.SIGKILL)
            result = await function(*args, **options)
            if due and self.side == "after":
                os.killpg(0, signal.SIGKILL)
            return result

        return awaiting if inspect.iscoroutinefunction(function) else wrapper


FUNCTIONS = (
    "benchflow_jobs.begin:write_plan",
    "benchflow_jobs.runner:open_record",
    "benchflow_jobs.runner:adopt_results",
    "benchflow_jobs.runner:reap_leftovers",
    "benchflow_jobs.job_record:DatabaseRecord.start",
    "benchflow_jobs.job_record:DatabaseRecord.commit",
    "benchflow_jobs.job_record:DatabaseRecord.resolve",
    "benchflow_jobs.job_record:DatabaseRecord.set_status",
    "benchflow_jobs.executor:EngineExecutor.run",
    "benchflow_engine.rollout:write_outcome",
    "benchflow_engine.rollout:write_result",
    "benchflow_store.database.writer:JobWriter._begin",
    "benchflow_store.database.writer:CommitGroup.commit",
    "benchflow_store.database.writer:CommitGroup.flush",
    "benchflow_store.database.writer:JobWriter._transact",
    "benchflow_store.database.projection:Projector.update",
    "benchflow_store.database.projection:_replace",
    "benchflow_jobs.runner:write_report",
)
"""From the plan of a job to its summary: what makes something durable, or says that it is."""


def crash_points(calls: int) -> list[CrashPoint]:
    """Return the points before and after the first calls of each function."""
    return [
        CrashPoint(function, side, call)
        for call in range(1, calls + 1)
        for function in FUNCTIONS
        for side in ("before", "after")
    ]
