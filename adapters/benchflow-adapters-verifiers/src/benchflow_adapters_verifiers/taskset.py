# mypy: disable-error-code="import-not-found,misc,no-any-unimported,unused-ignore"
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false
"""BenchFlow's tasks as a taskset of verifiers 0.4."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchflow_contracts import Task as OurTask
from benchflow_contracts import UsageError
from benchflow_engine.task_formats import runnable_tasks
from benchflow_serve_client import BlockingServeClient, ServedTask
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.task import Task, TaskData
from verifiers.v1.taskset import Taskset


class BenchFlowData(TaskData):
    """The data of one task. `id` names the task on the server."""

    benchflow_key: str
    """`Task.key`, which the server writes into the episode."""
    digest: str | None = None
    """The digest of the task's files, so that other files are another task."""


class BenchFlowTask(Task[BenchFlowData]):
    """One task. Its reward comes from BenchFlow, and not from a function of verifiers."""

    source: OurTask | None = None
    """The task itself, if the taskset has read its directory."""

    @property
    def key(self) -> str:
        """The id of the task, which does not change with its place in the taskset."""
        key: str = self.data.benchflow_key
        return key


class BenchFlowConfig(TasksetConfig):
    """Where the tasks are: `url` or `directory`."""

    url: str = ""
    """The address of `bench serve`. The token comes from `$BENCHFLOW_SERVE_TOKEN`."""
    directory: Path | None = None
    """A directory of tasks, in any format that BenchFlow reads."""


class BenchFlowTaskset(Taskset[BenchFlowTask, BenchFlowConfig]):
    """The tasks of a server or of a directory. Tasks that cannot run are left out.

    Raises:
        UsageError: Not exactly one source is given.
    """

    def __init__(self, config: BenchFlowConfig) -> None:
        super().__init__(config)
        if bool(config.url) == (config.directory is not None):
            raise UsageError(
                f"the taskset has the url {config.url!r} and the directory {config.directory}",
                hint="give one of --env.taskset.url and --env.taskset.directory",
            )

    def load(self) -> Iterator[BenchFlowTask]:
        """Yield the tasks, by id."""
        if self.config.directory is not None:
            found = runnable_tasks(str(self.config.directory))
            for ours in sorted(found.tasks, key=lambda task: task.id):
                task = self._task(ours.id, ours.digest, ours.instruction)
                task.source = ours
                yield task
            return
        # Verifiers iterates a taskset inside its event loop, which this client must not share.
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(_served_tasks, self.config.url).result()
        for each in served:
            yield self._task(each.id, each.digest, None)

    def _task(self, ident: str, digest: str | None, prompt: str | None) -> BenchFlowTask:
        data = BenchFlowData(
            id=ident, name=ident, benchflow_key=ident, digest=digest, prompt=prompt
        )
        return BenchFlowTask(data, self.config.task)


def _served_tasks(url: str) -> list[ServedTask]:
    found: list[ServedTask] = []
    with BlockingServeClient(url) as client:
        after: str | None = None
        while True:
            page = client.tasks(after=after)
            found += (task for task in page.tasks if task.refusal is None)
            after = page.next
            if after is None:
                return found
