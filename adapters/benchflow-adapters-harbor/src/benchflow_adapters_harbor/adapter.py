"""The entry point `harbor` of the group `benchflow.adapters`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urldefrag

from benchflow_contracts import AdapterOptions, ListedTask, Task, TaskError, UsageError

from benchflow_adapters_harbor.config import HarborEnvironment
from benchflow_adapters_harbor.task import HarborStep, HarborTask

from .blockers import blockers
from .datasets.directory import collections, is_task, read_directory
from .datasets.repository import parse_repository
from .host_policy import HostPolicy
from .load import load_harbor_task
from .lowering import lower
from .toml_text import read_toml


class HarborAdapter:
    """List and load tasks of Harbor and Terminal-Bench: directories, git and registries.

    Args:
        policy: The hardware, networks and host access that a task may have here.
        cache: The directory for fetched trees. `None` is the user's cache directory.
        options: The permissions that the operator gives to tasks.
    """

    def __init__(
        self,
        policy: HostPolicy | None = None,
        cache: Path | None = None,
        *,
        options: AdapterOptions = AdapterOptions(),  # noqa: B008
    ) -> None:
        self._policy = (policy or HostPolicy()).allowing(options)
        self._cache = cache

    def claims(self, source: str) -> bool:
        """Return whether `source` is a git URL, a registry.json or a directory of such tasks.

        The first readable task of a directory decides. A `task.toml` of BenchFlow has a
        `name` at its root; a `task.toml` of Harbor never has.
        """
        if _is_registry(source) or parse_repository(source) is not None:
            return True
        return next(_verdicts(Path(source)), False)

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the tasks of `source`. A task that cannot run is listed with its refusals.

        Raises:
            TaskError: The source itself is malformed or cannot be fetched.
            UsageError: `dataset` is unknown or missing, or `source` is not a registry.
        """
        cache = self._cache or cache_directory()
        if _is_registry(source):
            from .datasets.registry import read_registry  # noqa: PLC0415 - most jobs have none

            return read_registry(source, self._policy, cache, dataset=dataset)
        if dataset is not None:
            raise UsageError(f"{source!r} is not a registry.json", hint="leave out --dataset")
        if parse_repository(source) is not None:
            from .datasets.repository import read_repository  # noqa: PLC0415

            return read_repository(source, self._policy, cache)
        return read_directory(Path(source), self._policy)

    def load_task(self, path: Path) -> Task:
        """Read the Harbor or Terminal-Bench task in `path` and convert it to a Task.

        Raises:
            TaskError: The task is malformed, or refused here. The error has every reason.
        """
        task = load_harbor_task(path)
        if self._policy.force_build:
            task = ignore_prebuilt_images(task)
        if problems := tuple(blockers(task, self._policy)):
            lines = [each.reason for each in problems]
            raise TaskError("; ".join(lines), where=problems[0].where, hint=problems[0].hint)
        if task.terminal_bench is not None:
            from .migrate import migrate  # noqa: PLC0415

            task = migrate(task, self._cache or cache_directory())
        return lower(task, self._policy)


def _is_registry(source: str) -> bool:
    if source.startswith(("http://", "https://")):
        return urldefrag(source).url.endswith(".json")
    return source.endswith(".json") and Path(source).is_file()


def _tasks_below(path: Path) -> Iterator[Path]:
    for collection in collections(path):
        yield from filter(is_task, sorted(collection.iterdir()))


def _verdicts(path: Path) -> Iterator[bool]:
    tasks = [path] if is_task(path) else _tasks_below(path)
    if (path / "dataset.toml").is_file():
        yield True
    for task in tasks:
        if not (task / "task.toml").is_file():
            yield True
            continue
        root = task.resolve()
        try:
            yield "name" not in read_toml(root, root / "task.toml")
        except TaskError:
            continue


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/benchflow/tasks`, or the same below `~/.cache` if that is not set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "tasks"


def ignore_prebuilt_images(task: HarborTask) -> HarborTask:
    """Return `task` without the image names that a Dockerfile can replace.

    `--force-build` of Harbor 0.24 does the same. An image without a Dockerfile stays.
    """
    config = task.config
    if task.dockerfile:
        config = config.model_copy(update={"environment": _without_image(config.environment)})
    steps = tuple(_step(step) for step in task.steps)
    return task.model_copy(update={"config": config, "steps": steps})


def _step(step: HarborStep) -> HarborStep:
    plan = step.verifier
    if plan.environment is None or plan.directory is None:
        return step
    if not (plan.directory / "Dockerfile").is_file():
        return step
    verifier = plan.model_copy(update={"environment": _without_image(plan.environment)})
    return step.model_copy(update={"verifier": verifier})


def _without_image(environment: HarborEnvironment) -> HarborEnvironment:
    return environment.model_copy(update={"docker_image": None})
