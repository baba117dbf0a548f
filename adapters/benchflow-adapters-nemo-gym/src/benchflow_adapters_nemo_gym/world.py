"""Rows of NeMo Gym as our tasks, and their resources server as our environment.

The source is `nemo-gym://HOST:PORT/ROWS.jsonl`: the address of the resources server, and a file of
rows, which is relative to the current directory. For an absolute path, write `HOST:PORT//ROWS`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    DataTask,
    EnvironmentFactory,
    Model,
    Task,
    TaskConfig,
    TaskError,
    TaskSplit,
    UsageError,
)
from benchflow_env_outside import outside_environment, read_options, world_url
from pydantic import Field

from .hostile_json import as_object
from .world_client import NemoGymClient, prompt_of

NAME: Final = "nemo-gym"
_ADDRESS: Final = re.compile(r"(?P<server>[^/\s]+:\d{1,5})/(?P<path>.+\.jsonl)")
_RANGE: Final = (-1e6, 1e6)
"""NeMo Gym does not say the range of a reward."""


class NemoGymSettings(Model):
    """The options of a task's environment."""

    url: str = Field(pattern=r"^https?://[^/\s]+$")
    """The resources server."""


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a row.

    Raises:
        TaskError: The settings are malformed, or the operator does not allow the host.
    """
    del manifest
    settings = read_options(NemoGymSettings, task, hint="set options.url")
    url = world_url(settings.url)
    return outside_environment(task, NAME, lambda: NemoGymClient(url))


class NemoGymRows:
    """The rows of a JSONL file as tasks. The file is one split with its own name."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the only split."""
        _, path = _parts_of(address)
        return [TaskSplit(name=path.stem, size=sum(1 for _ in _rows_in(path)))]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return tasks by the number of their row.

        Raises:
            TaskError: The file cannot be read, or a row is not a JSON object.
            UsageError: The split is unknown.
        """
        url, path = _parts_of(address)
        if split not in {None, path.stem}:
            raise UsageError(f"{str(path)!r} has no split {split!r}", hint="leave it out")
        rows = islice(enumerate(_rows_in(path)), start, start + limit)
        return [row_task(row, f"{_slug(path.stem)}/{number}", url) for number, row in rows]


def row_task(row: dict[str, Any], name: str, url: str) -> DataTask:
    """Return one row as a task. Its reward is the sum of the rewards of the server."""
    return DataTask(
        config=TaskConfig.model_validate(
            {
                "name": name,
                "environment": {"provider": NAME, "options": {"url": url}},
                "verifier": {
                    "type": "environment",
                    "options": {"rule": "sum"},
                    "reward_range": list(_RANGE),
                },
            }
        ),
        instruction=prompt_of(row) or "Act by the tools of the environment.",
        data=row,
    )


def _parts_of(address: str) -> tuple[str, Path]:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(
            f"{address!r:.200} is not HOST:PORT/ROWS.jsonl",
            hint="name the resources server and a file of rows",
        )
    return f"http://{match['server']}", Path(match["path"])


def _rows_in(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row: object = json.loads(line)
                if not isinstance(row, dict):
                    raise TaskError("the row is not a JSON object", where=f"{path}:{number}")
                yield as_object(row)  # pyright: ignore[reportUnknownArgumentType]
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"the rows of {str(path)!r} cannot be read: {error}") from error


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "-", text.lower()).strip("._-") or "rows"
