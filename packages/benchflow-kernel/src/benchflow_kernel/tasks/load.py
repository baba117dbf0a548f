"""Load a Task from a directory, with the digest of its files."""

import hashlib
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchflow_contracts import Task, TaskConfig, TaskError
from benchflow_contracts.cause import refuse_shortage

from .reading import read_instruction, read_model, read_toml
from .steps import load_steps


def load_task(path: Path) -> Task:
    """Read and check the task directory `path`.

    Raises:
        TaskError: The directory is malformed; `where` or the message names each file and key.
    """
    root = path.resolve()
    if not root.is_dir():
        raise TaskError(
            f"task {str(path)!r} is not a directory", hint="name a directory with a task"
        )
    digest = digest_of(root)
    file = root / "task.toml"
    data = read_toml(file)
    steps = load_steps(root, data)
    own = {name: value for name, value in data.items() if name != "steps"}
    config = read_model(TaskConfig, own, f"{file}:", file=file)
    instruction = steps[0].instruction if steps else read_instruction(root / "instruction.md")
    return Task(
        id=config.name,
        path=root,
        instruction=instruction,
        config=config,
        digest=digest,
        steps=steps,
    )


def find_tasks(path: Path) -> list[Task]:
    """Return the task at `path`, or all tasks directly below it, sorted by folder name.

    Folders without a `task.toml` are skipped.

    Raises:
        TaskError: There is no task, a task is malformed, or two tasks have the same name.
    """
    if (path / "task.toml").is_file():
        return [load_task(path)]
    if not path.is_dir():
        raise TaskError(f"{str(path)!r} is not a directory", hint="name a directory of tasks")
    tasks = [load_task(child) for child in sorted(path.iterdir()) if _is_task(child)]
    if not tasks:
        raise TaskError(f"no task in {str(path)!r}", hint="a task is a folder with a task.toml")
    by_id: dict[str, Task] = {}
    for task in tasks:
        other = by_id.setdefault(task.id, task)
        if other is not task:
            raise TaskError(
                f"tasks {other.path.name!r} and {task.path.name!r} are both named {task.id!r}",
                where=f"{task.path / 'task.toml'}:name",
            )
    return tasks


def _is_task(path: Path) -> bool:
    return path.is_dir() and (path / "task.toml").is_file()


def digest_of(root: Path) -> str:
    """Return the SHA-256 of the sorted relative names and contents of all files.

    A link inside counts as its target. Times, owners and modes do not count.

    Raises:
        TaskError: A link leaves the directory, or an entry is not a regular file.
    """
    total = hashlib.sha256()
    for name, path in sorted(_files(root)):
        content = _content_digest(root, path)
        total.update(f"{len(name.encode())}:".encode() + name.encode() + content)
    return f"sha256:{total.hexdigest()}"


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, files in os.walk(root, onerror=partial(refuse_shortage, "read a task")):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            try:
                relative.encode()
            except UnicodeEncodeError:
                raise TaskError(f"file name {relative!r} is not UTF-8", where=str(root)) from None
            yield relative, path


def _content_digest(root: Path, path: Path) -> bytes:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return _link_digest(root, path)
        if not stat.S_ISREG(mode):
            raise TaskError("neither a regular file nor a directory", where=str(path))
        with path.open("rb") as stream:
            return b"f" + hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        refuse_shortage("read a task", error)
        raise TaskError(f"cannot be read: {error}", where=str(path)) from error


def _link_digest(root: Path, path: Path) -> bytes:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise TaskError(f"a broken link: {error}", where=str(path)) from error
    if not target.is_relative_to(root):
        raise TaskError(f"a link that leaves the task directory, to {target}", where=str(path))
    link = path.readlink().as_posix().encode("utf-8", "surrogateescape")
    return b"l" + hashlib.sha256(link).digest()
