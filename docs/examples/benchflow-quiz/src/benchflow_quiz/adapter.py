"""The adapter of folders with a `quiz.json`."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import (
    AdapterOptions,
    ListedTask,
    Task,
    TaskConfig,
    TaskError,
    TaskRefusal,
    UsageError,
)

_FILE = "quiz.json"


class QuizAdapter:
    """Reads quizzes. The tests of a quiz are in its `tests/`, as those of a task of BenchFlow."""

    def __init__(self, *, options: AdapterOptions) -> None:
        """Need no permission of the operator."""
        del options

    def claims(self, source: str) -> bool:
        """Return whether `source` is a quiz or has folders with quizzes."""
        return bool(_folders(source))

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the quizzes by name.

        Raises:
            TaskError: `source` has no quiz.
            UsageError: A dataset is named.
        """
        if dataset is not None:
            raise UsageError(f"{source!r} does not have datasets", hint="leave out --dataset")
        folders = _folders(source)
        if not folders:
            raise TaskError(f"no quiz in {source!r}", hint=f"a quiz has a {_FILE}")
        return [_listed(folder) for folder in folders]

    def load_task(self, path: Path) -> Task:
        """Return the task of one quiz.

        Raises:
            TaskError: The quiz cannot be read.
        """
        return Task(
            id=path.name,
            path=path.resolve(),
            instruction=_question(path),
            config=TaskConfig(name=path.name),
            digest=_digest(path),
            format="quiz",
        )


def _folders(source: str) -> list[Path]:
    if Path(source, _FILE).is_file():
        return [Path(source)]
    return [file.parent for file in sorted(Path(source).glob(f"*/{_FILE}"))]


def _listed(folder: Path) -> ListedTask:
    refusals: tuple[TaskRefusal, ...] = ()
    try:
        _question(folder)
    except TaskError as error:
        refusals = (TaskRefusal.from_error(error),)
    return ListedTask(
        name=folder.name, path=folder, format="quiz", digest=_digest(folder), refusals=refusals
    )


def _question(folder: Path) -> str:
    file = folder / _FILE
    try:
        question = json.loads(file.read_text(encoding="utf-8"))["question"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TaskError(f"not a quiz: {error!r}", where=str(file), hint="correct it") from error
    if not isinstance(question, str) or not question:
        raise TaskError("the question is not a text", where=str(file), hint="write a question")
    return question


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder)}\0{content}\n".encode())
    return f"sha256:{digest.hexdigest()}"
