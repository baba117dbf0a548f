"""An adapter of a format of one file."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts.errors import TaskError, UsageError
from benchflow_contracts.task import Task, TaskConfig
from benchflow_contracts.task_listing import ListedTask, TaskRefusal

_FILE = "fake.task"


class FakeTaskAdapter:
    """Reads folders with a `fake.task`. Its text is the instruction; an empty file is broken."""

    def claims(self, source: str) -> bool:
        """Return whether `source` or a folder in it has the file."""
        return bool(_files(source))

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the task in `source`, or those in its folders, by name."""
        if dataset is not None:
            raise UsageError(f"{source!r} does not have datasets", hint="leave out --dataset")
        files = _files(source)
        if not files:
            raise TaskError(f"no task in {source!r}", hint=f"a task has a {_FILE}")
        return [self._read(file) for file in files]

    def load_task(self, path: Path) -> Task:
        """Return the task of one folder."""
        if not (path / _FILE).is_file():
            raise TaskError(f"no {_FILE} in {str(path)!r}")
        listed = self._read(path / _FILE)
        if not listed.ok:
            raise TaskError("the file is empty", where=str(path / _FILE), hint="write into it")
        return Task(
            id=path.name,
            path=path.resolve(),
            instruction=(path / _FILE).read_text(encoding="utf-8"),
            config=TaskConfig(name=path.name),
            digest=listed.digest or "",
            format=listed.format,
        )

    def _read(self, file: Path) -> ListedTask:
        data = file.read_bytes()
        broken = TaskRefusal(where=str(file), reason="the file is empty", hint="write into it")
        return ListedTask(
            name=file.parent.name,
            path=file.parent,
            format="fake",
            digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
            refusals=() if data else (broken,),
        )


def _files(source: str) -> list[Path]:
    own = Path(source, _FILE)
    return [own] if own.is_file() else sorted(Path(source).glob(f"*/{_FILE}"))


def write_fake_task(folder: Path) -> None:
    """Write a task into `folder` that `FakeTaskAdapter` accepts."""
    (folder / _FILE).write_text("Do it.\n", encoding="utf-8")


def write_broken_task(folder: Path) -> None:
    """Write a task into `folder` that `FakeTaskAdapter` refuses."""
    (folder / _FILE).write_text("", encoding="utf-8")
