"""The actor of a node: it runs rollouts with one executor."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from benchflow_contracts import Executor, UsageError
from benchflow_jobs.leased_worker import LeasedWorker
from benchflow_kernel import load_path


class WorkerHost(LeasedWorker):
    """A worker that imports its executor on the node."""

    def __init__(self, executor: str, options: Mapping[str, Any], lease_sec: float) -> None:
        """Prepare the actor. `executor` and `options` are those of `open_executor`."""
        super().__init__(open_executor(executor, options), lease_sec)


@asynccontextmanager
async def open_executor(path: str, options: Mapping[str, Any]) -> AsyncGenerator[Executor]:
    """Import the executor at `path`, as `module:attr`, and open it.

    A class or a function is called with `options`. Its result may be an asynchronous context
    manager that yields the executor.

    Raises:
        UsageError: There is not an executor at that path.
    """
    found: Any = cast("Any", load_path(path))
    is_factory = isinstance(found, type) or not hasattr(found, "run")
    if is_factory and not callable(found):
        raise UsageError(f"{path!r} is not an executor: it has no method `run`")
    made: Any = cast("Any", found(**options) if is_factory else found)
    if hasattr(made, "__aenter__"):
        async with made as opened:
            yield _checked(path, opened)
    else:
        yield _checked(path, made)


def _checked(path: str, made: object) -> Executor:
    if not callable(getattr(made, "run", None)):
        raise UsageError(f"{path!r} made {type(made).__name__}, which has no method `run`")
    return cast("Executor", made)
