"""Find the backend of a job, and prepare what its workers need."""

import difflib
import secrets
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, UsageError, WorkerBackend
from benchflow_engine.planes import find_plugin
from benchflow_store import write_text

from .dispatch_executor import EXECUTOR, MARK_FILE
from .planning import JobConfig, ResolvedJob, resource_limits
from .planning.job_config import BackendConfig

_GROUP: Final = "benchflow.backends"
_OURS: Final = frozenset({"executor", "capacity", "options", "on_capacity"})
"""The parameters of a factory that a job sets itself."""


def _find(config: BackendConfig) -> Callable[..., WorkerBackend]:
    """Return the `BackendFactory` of a job, after a check of the names of its options."""
    is_path = ":" in config.name
    found = find_plugin(_GROUP, config.name, config.name if is_path else None)
    if not callable(found):
        raise UsageError(f"backend {config.name!r} cannot be called", hint="name a class")
    _check_options(config, found)
    return cast("Callable[..., WorkerBackend]", found)


def _check_options(config: BackendConfig, factory: Callable[..., object]) -> None:
    try:
        parameters = signature(factory).parameters.values()
    except ValueError:  # of a factory that is not written in Python
        return
    if any(each.kind == Parameter.VAR_KEYWORD for each in parameters):
        return
    known = sorted({each.name for each in parameters} - _OURS)
    for name in config.options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            near = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(
                f"backend {config.name!r} has no option {name!r}{near}",
                hint=f"its options are: {', '.join(known) or 'none'}",
            )


def check_backend(config: JobConfig) -> None:
    """Check the name and the options of a backend. Starts nothing.

    Raises:
        UnknownProviderError: The name is not registered. The hint names the extra of a known one.
        UsageError: The factory cannot be imported, or an option does not exist or is wrong.
    """
    _make(config, {}, lambda _: None)


def make_backend(
    plan: ResolvedJob,
    directory: Path,
    on_capacity: Callable[[Mapping[str, int]], None],
) -> WorkerBackend:
    """Return the backend of a job whose workers are in other processes. Starts nothing.

    Raises:
        UsageError: As `check_backend`.
        StoreError: The directory of the job cannot be written.
    """
    return _make(plan.config, _executor_options(plan, directory), on_capacity)


def _make(
    job: JobConfig,
    options: Mapping[str, Any],
    on_capacity: Callable[[Mapping[str, int]], None],
) -> WorkerBackend:
    config = job.backend
    factory = _find(config)
    try:
        return factory(
            EXECUTOR,
            worker_limits(job),
            options=options,
            on_capacity=on_capacity,
            **config.options,
        )
    except BenchFlowError:
        raise
    except Exception as error:
        raise UsageError(
            f"backend {config.name!r} cannot be made: {type(error).__name__}: {error}",
            hint="correct the table [backend.options]",
        ) from error


def worker_limits(config: JobConfig) -> dict[str, int]:
    """Return what may be in use at once on all workers: only what the job sets itself."""
    limits = resource_limits(config)
    if "slots" not in config.concurrency.model_fields_set:
        del limits["slots"]
    return limits


def _executor_options(plan: ResolvedJob, directory: Path) -> dict[str, Any]:
    """Return the arguments of `open_executor`; mark the directory if workers have to see it."""
    tables = {each.run.sandbox.model_dump_json(): each.run.sandbox for each in plan.variants}
    options: dict[str, Any] = {
        "job": directory.name,
        "directory": str(directory.resolve()),
        "sandboxes": [each.model_dump(mode="json") for each in tables.values()],
    }
    if plan.config.evidence.url is not None:
        return {**options, "evidence": plan.config.evidence.url}
    mark = secrets.token_hex(16)
    write_text(directory / MARK_FILE, mark)
    return {**options, "mark": mark}
