"""The entry point `inspect` of the group `benchflow.adapters`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from benchflow_contracts import (
    AdapterOptions,
    ListedTask,
    Task,
    TaskError,
    TaskRefusal,
    UsageError,
)

from .sample_folder import FORMAT, SAMPLE_FILE, load_sample

_PREFIX = "inspect:"


class InspectAdapter:
    """List and load tasks of Inspect: `inspect:FILE.py@TASK`, `inspect:PACKAGE/TASK`.

    Each sample is a task. Listing such a source runs the task's code on this machine, as Inspect
    does, and writes each sample into a directory of the user's cache. These directories, and
    directories of them, can be listed and loaded without Inspect's package.

    Args:
        cache: The directory for samples. `None` is the user's cache directory.
        options: Not used: tasks of Inspect ask for no permission.
    """

    def __init__(
        self,
        cache: Path | None = None,
        *,
        options: AdapterOptions | None = None,  # noqa: ARG002 - the signature of the group
    ) -> None:
        self._cache = cache

    def claims(self, source: str) -> bool:
        """Return whether `source` begins with `inspect:`, or has directories of samples."""
        return source.startswith(_PREFIX) or bool(_folders(Path(source)))

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        """Return the samples of `source`. A sample that cannot run is listed with its refusals.

        `inspect:FILE.py@TASK?NAME=VALUE` sets arguments of the task; a value is JSON, or else text.

        Raises:
            TaskError: The task cannot be loaded, or the directory has no sample.
            UsageError: Inspect's package is missing, or `dataset` is given.
        """
        if dataset is not None:
            raise UsageError("a task of Inspect is not a registry", hint="leave out --dataset")
        if not source.startswith(_PREFIX):
            folders = _folders(Path(source))
            if not folders:
                raise TaskError(
                    f"{source!r} has no sample of Inspect", hint="see inspect:FILE@TASK"
                )
            return [_listed(folder) for folder in folders]
        spec, _, query = source.removeprefix(_PREFIX).partition("?")
        args = {name: _value(text) for name, text in parse_qsl(query, keep_blank_values=True)}
        try:
            from .materialize import write_samples  # noqa: PLC0415 - of the extra
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{source!r} needs Inspect's package: {error}",
                hint="pip install 'benchflow-adapters-inspect[inspect]'",
            ) from error
        found = write_samples(spec, args, self._cache or cache_directory())
        return [each if isinstance(each, ListedTask) else _listed(each) for each in found]

    def load_task(self, path: Path) -> Task:
        """Return the sample in the directory `path`.

        Raises:
            TaskError: The directory is malformed.
        """
        return load_sample(path)


def _folders(path: Path) -> list[Path]:
    try:
        if (path / SAMPLE_FILE).is_file():
            return [path]
        return [each for each in sorted(path.iterdir()) if (each / SAMPLE_FILE).is_file()]
    except OSError:
        return []


def _listed(folder: Path) -> ListedTask:
    try:
        task = load_sample(folder)
    except TaskError as error:
        refusal = TaskRefusal(
            reason=str(error), where=error.where, hint=error.hint or "list the task again"
        )
        return ListedTask(name=folder.name, path=folder, format=FORMAT, refusals=(refusal,))
    notes = tuple(task.config.metadata.get("inspect_notes", ()))
    return ListedTask(name=task.id, path=folder, format=FORMAT, digest=task.digest, notes=notes)


def _value(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError:
        return text


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/benchflow/inspect`, or the same below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "inspect"
