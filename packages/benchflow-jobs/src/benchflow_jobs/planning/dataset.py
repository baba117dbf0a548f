"""The tasks of a job, from directories, lists in JSONL and other formats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from benchflow_contracts import AdapterOptions, ListedTask, Task, TaskError, UsageError
from benchflow_engine.task_formats import FoundTasks, runnable_task, runnable_tasks
from benchflow_engine.task_override import TaskOverride
from pydantic import Field, ValidationError

from .job_config import DatasetConfig
from .problems import Problem, problem_of, raise_problems


class TaskRow(TaskOverride):
    """One line of a list of tasks: a task, with other values for it."""

    path: str = Field(min_length=1)
    """The task's directory, relative to the list."""
    id: str | None = None
    """The name that the task must have (default: any)."""

    def override(self) -> TaskOverride:
        """Return the other values."""
        given = self.model_dump(exclude={"path", "id"}, exclude_unset=True)
        return TaskOverride.model_validate(given)


@dataclass(frozen=True, slots=True)
class Dataset:
    """The tasks of a job in the order of their sources."""

    tasks: tuple[Task, ...]
    refused: tuple[ListedTask, ...] = ()
    """Tasks of the sources that cannot be run here, each with its reasons."""
    rows: Mapping[str, TaskOverride] = field(default_factory=dict[str, TaskOverride])
    """The other values of lists, by task."""
    left_out: frozenset[str] = frozenset()
    """The names of tasks that were not chosen."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all tasks of the sources."""
        known = (*(task.id for task in self.tasks), *(task.name for task in self.refused))
        return self.left_out | frozenset(known)


def find_dataset(config: DatasetConfig, options: AdapterOptions) -> Dataset:
    """Return the tasks of a job, and those that cannot be run here.

    Raises:
        JobConfigError: A source cannot be read, or no task was found. The error has all problems.
    """
    tasks: dict[str, Task] = {}
    refused: list[ListedTask] = []
    rows: dict[str, TaskOverride] = {}
    problems: list[Problem] = []
    for index, path in enumerate(config.paths):
        place = ("dataset", "paths", index)
        found = _found(path, config, options, rows, problems, place)
        refused += found.refused
        for task in found.tasks:
            if tasks.setdefault(task.id, task) is not task:
                reason = f"task {task.id!r} is there twice"
                problems.append(Problem(place, reason, "name each task once", path))
    chosen = [task for task in tasks.values() if _is_wanted(config, task.id)]
    not_run = [task for task in refused if _is_wanted(config, task.name)]
    if config.limit is not None and chosen:
        chosen, not_run = chosen[: config.limit], []
    if not problems and not chosen and not not_run:
        hint = "check dataset.paths, dataset.include and dataset.exclude"
        problems.append(Problem(("dataset",), "there is no task to run", hint))
    raise_problems(problems)
    left_out = tasks.keys() - {task.id for task in chosen} | {task.name for task in refused}
    return Dataset(tuple(chosen), tuple(not_run), rows, frozenset(left_out))


def _found(
    path: str,
    config: DatasetConfig,
    options: AdapterOptions,
    rows: dict[str, TaskOverride],
    problems: list[Problem],
    place: tuple[str | int, ...],
) -> FoundTasks:
    """Return the tasks of one source; add the values of its rows, and its problems."""
    try:
        if not path.endswith(".jsonl"):
            return runnable_tasks(path, dataset=config.name, options=options)
        listed = list(_listed(Path(path), options, problems))
    except (TaskError, UsageError) as error:
        problems.append(Problem(place, str(error), error.hint, path))
        return FoundTasks(())
    except OSError as error:
        problems.append(Problem(place, f"cannot be read: {error.strerror}", "check the path", path))
        return FoundTasks(())
    rows.update({task.id: row.override() for row, task in listed})
    return FoundTasks([task for _, task in listed])


def _listed(
    file: Path, options: AdapterOptions, problems: list[Problem]
) -> Iterator[tuple[TaskRow, Task]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = TaskRow.model_validate_json(line, strict=True)
            task = runnable_task(file.parent / row.path, options)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            found = (problem_of(TaskRow, fault) for fault in faults)
            problems += [Problem(p.key, p.reason, p.hint, p.value, where) for p in found]
        except (TaskError, UsageError) as error:
            problems.append(Problem(("path",), str(error), error.hint, where=where))
        else:
            if row.id is not None and row.id != task.id:
                reason = f"the task in {row.path!r} is {task.id!r}"
                problems.append(Problem(("id",), reason, "correct the id", row.id, where))
            yield row, task


def _is_wanted(config: DatasetConfig, name: str) -> bool:
    names: Sequence[str] = (name, name.rsplit("/", 1)[-1])
    included = not config.include or any(fnmatch(n, p) for n in names for p in config.include)
    return included and not any(fnmatch(n, p) for n in names for p in config.exclude)
