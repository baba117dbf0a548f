"""The entry point `harbor` of the group `benchflow.adapters`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urldefrag

from benchflow_contracts import AdapterOptions, ListedTask, Task, TaskError, UsageError

from .datasets import read_directory, read_registry, read_repository
from .datasets.cache import cache_directory
from .datasets.directory import collections, is_task
from .datasets.repository import parse_repository
from .load import load_harbor_task
from .lowering import built_anew, lower
from .machine import Machine
from .migrate import migrate
from .obstacles import obstacles
from .toml_text import read_toml


class HarborAdapter:
    """Lists tasks of Harbor and Terminal-Bench from directories, git and registries.

    Args:
        machine: What can be given to a task here.
        cache: Where fetched trees are kept; `None` is the user's cache directory.
        options: What the operator allows the tasks.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        cache: Path | None = None,
        *,
        options: AdapterOptions = AdapterOptions(),  # noqa: B008
    ) -> None:
        self._machine = (machine or Machine()).allowing(options)
        self._cache = cache

    def claims(self, source: str) -> bool:
        """Return whether `source` is a git URL, a registry.json or holds such tasks.

        A directory is judged by its first task that can be read: our own `task.toml` has
        a `name` at its root, which Harbor's never had.
        """
        if _is_registry(source) or parse_repository(source) is not None:
            return True
        return next(_verdicts(Path(source)), False)

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the tasks of `source`, bad ones with their refusals.

        Raises:
            TaskError: The source itself is malformed or cannot be fetched.
            UsageError: `dataset` names nothing, is needed, or `source` is no registry.
        """
        cache = self._cache or cache_directory()
        if _is_registry(source):
            return read_registry(source, self._machine, cache, dataset=dataset)
        if dataset is not None:
            raise UsageError(f"{source!r} is no registry.json", hint="leave out --dataset")
        if parse_repository(source) is not None:
            return read_repository(source, self._machine, cache)
        return read_directory(Path(source), self._machine)

    def load_task(self, path: Path) -> Task:
        """Return the Task that the Harbor or Terminal-Bench task in `path` means.

        Raises:
            TaskError: It is malformed; or it is refused here, with every reason.
        """
        task = load_harbor_task(path)
        if self._machine.force_build:
            task = built_anew(task)
        if found := tuple(obstacles(task, self._machine)):
            lines = [each.reason for each in found]
            raise TaskError("; ".join(lines), where=found[0].where, hint=found[0].hint)
        if task.terminal_bench is not None:
            task = migrate(task, self._cache or cache_directory())
        return lower(task, self._machine)


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
