"""The tasks of the service: those of its directories, and those that a request brings."""

import asyncio
import base64
import binascii
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from benchflow_contracts import AdapterOptions, ListedTask, Task, TaskError, UsageError
from benchflow_engine.task_formats import runnable_tasks
from benchflow_kernel import load_task
from benchflow_serve_client import InlineFile, InlineTask, ServedTask, TaskPage

from .problems import NotFoundError, RequestRefusedError

_MAX_FILES: Final = 1000
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_PATH: Final = 240
_MAX_DEPTH: Final = 16
_PART: Final = re.compile(r"[A-Za-z0-9._+@ -]{1,100}")
_PAGE: Final = 1000


class TaskCatalogue:
    """The tasks of some directories, by id."""

    def __init__(self, tasks: Iterable[Task], refused: Sequence[ListedTask] = ()) -> None:
        """Take the tasks.

        Raises:
            UsageError: Two tasks have one id.
        """
        self._tasks: dict[str, Task] = {}
        for task in tasks:
            if (other := self._tasks.setdefault(task.id, task)) is not task:
                raise UsageError(
                    f"two tasks are named {task.id!r}: {str(other.path)!r} and {str(task.path)!r}",
                    hint="serve one of their directories alone",
                )
        listed = [
            ServedTask(id=task.id, digest=task.digest, format=task.format)
            for task in self._tasks.values()
        ]
        listed += [_refused(each) for each in refused if each.name not in self._tasks]
        self._listed = sorted(listed, key=lambda each: each.id)

    @classmethod
    def read(cls, directories: Iterable[Path], options: AdapterOptions) -> "TaskCatalogue":
        """Read the tasks of directories, in any format.

        Raises:
            TaskError: A task is malformed.
            UsageError: Two tasks have one id.
        """
        found = [runnable_tasks(str(directory), options=options) for directory in directories]
        tasks = [task for each in found for task in each.tasks]
        return cls(tasks, [task for each in found for task in each.refused])

    def find(self, ident: str) -> Task:
        """Return a task.

        Raises:
            NotFoundError: No task has the id.
        """
        try:
            return self._tasks[ident]
        except KeyError:
            raise NotFoundError(
                f"the service has no task {ident!r}", hint="GET /v1/tasks lists them"
            ) from None

    def page(self, after: str = "", limit: int = 100) -> TaskPage:
        """Return the tasks with a greater id than `after`, at most `limit` or 1,000."""
        limit = min(limit, _PAGE)
        rest = (each for each in self._listed if each.id > after)
        tasks = list(islice(rest, limit + 1))
        more = len(tasks) > limit
        return TaskPage(tasks=tasks[:limit], next=tasks[limit - 1].id if more else None)


def _refused(task: ListedTask) -> ServedTask:
    reasons = "; ".join(each.reason for each in task.refusals)
    return ServedTask(id=task.name, format="", refusal=reasons or "it cannot run here")


class InlineTasks:
    """The tasks of requests, in a directory of the service."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = asyncio.Lock()
        """Held while files are written or deleted."""
        self._in_use = Counter[Path]()

    @asynccontextmanager
    async def stored(self, task: InlineTask) -> AsyncGenerator[Task]:
        """Write the files of a task, and load it. It is not deleted inside the block.

        Raises:
            RequestRefusedError: A path or the size is refused, or the task is malformed.
        """
        async with self._lock:
            loaded = await asyncio.to_thread(store_inline_task, task, self._directory)
            self._in_use[loaded.path.resolve()] += 1
        try:
            yield loaded
        finally:
            self._in_use[loaded.path.resolve()] -= 1

    async def delete_unused(self, used: Callable[[], Collection[str | None]]) -> None:
        """Delete the tasks that no rollout has. `used` returns the directories of the others."""
        async with self._lock:
            if not self._directory.is_dir():
                return
            places, names = sorted(self._directory.resolve().iterdir()), used()
            for place in [place for place in places if str(place) not in names]:
                # A rollout may have got its place in the queue meanwhile.
                if not self._in_use[place] and str(place) not in used():
                    await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def store_inline_task(task: InlineTask, directory: Path) -> Task:
    """Write the files of a request's task below `directory`, and load the task.

    The same files have the same place. The files are hostile: only plain relative paths are
    written, as new files. No file is executed on this machine, so none is executable by its owner
    unless the request says so for the sandbox.

    Raises:
        RequestRefusedError: A path or the size is refused, or the task is malformed.
    """
    contents = {_checked_path(path): _content(path, file) for path, file in task.files.items()}
    _check_sizes(contents)
    place = directory / _digest(task, contents)
    if not (place / "task.toml").is_file():
        _write(place, task.files, contents)
    try:
        loaded = load_task(place)
    except TaskError as error:
        # The message names paths of this machine.
        message = str(error).replace(str(place.resolve()), task.id)
        raise RequestRefusedError(f"task {task.id!r}: {message}", hint=error.hint) from None
    return loaded


def _checked_path(path: str) -> str:
    parts = path.split("/")
    is_plain = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not is_plain or len(path) > _MAX_PATH or len(parts) > _MAX_DEPTH:
        raise RequestRefusedError(
            f"the path {path[:_MAX_PATH]!r} of an inline task is refused",
            hint="use relative paths of letters, digits and '._+@-', such as tests/test.sh",
        )
    return path


def _content(path: str, file: InlineFile) -> bytes:
    try:
        if file.text is not None:
            return file.text.encode()
        return base64.b64decode(file.base64 or "", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise RequestRefusedError(f"the file {path!r} has no valid content: {error}") from None


def _check_sizes(contents: Mapping[str, bytes]) -> None:
    size = sum(map(len, contents.values()))
    if len(contents) > _MAX_FILES or size > _MAX_BYTES:
        raise RequestRefusedError(
            f"the inline task has {len(contents)} files of {size} bytes",
            status=413,
            hint=f"at most {_MAX_FILES} files of {_MAX_BYTES} bytes together",
        )
    folders = {str(parent) for path in contents for parent in Path(path).parents}
    if clash := folders & contents.keys():
        raise RequestRefusedError(f"the path {min(clash)!r} is a file and a directory")


def _digest(task: InlineTask, contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path in sorted(contents):
        mode = b"x" if task.files[path].executable else b"-"
        head = f"{path}\0{len(contents[path])}\0".encode()
        digest.update(head + mode + contents[path])
    return digest.hexdigest()


def _write(place: Path, files: Mapping[str, InlineFile], contents: Mapping[str, bytes]) -> None:
    staging = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    for path, content in contents.items():
        target = staging / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = 0o755 if files[path].executable else 0o644
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    shutil.rmtree(place, ignore_errors=True)
    staging.rename(place)
