"""A git repository of tasks."""

import re
from pathlib import Path

from benchflow_contracts import ListedTask, TaskError

from benchflow_adapters_harbor.config import Record
from benchflow_adapters_harbor.host_policy import HostPolicy

from .directory import read_directory
from .git import LOCAL, GitTrees, inner_path

_URL = re.compile(r"(https?|ssh|git|file)://\S+|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:\S+")
_TASKS = "tasks"


class Repository(Record):
    """A repository as an operator names it: `URL`, `URL@REF` or `URL/tree/REF/FOLDER`."""

    url: str
    ref: str | None
    folder: str | None
    """The folder of its tasks. None is `tasks`, or the root if there is no `tasks`."""


def parse_repository(source: str) -> Repository | None:
    """Return the repository that `source` names, or None if it is not a git URL.

    Raises:
        TaskError: `source` names two refs.
    """
    if not _URL.fullmatch(source):
        return None
    head, _, ref = source.rpartition("@")
    # After the "@" of a user name, there is a slash or a colon.
    if not head or not ref or "/" in ref or ":" in ref:
        head, ref = source, ""
    url, tree, rest = head.partition("/tree/")
    of_tree, _, folder = rest.partition("/")
    if tree and ref:
        raise TaskError(f"{source!r} names two refs", hint="leave out @REF or /tree/REF")
    return Repository(
        url=url.rstrip("/"),
        ref=ref or of_tree or None,
        folder=inner_path(folder) if folder else None,
    )


def read_repository(source: str, policy: HostPolicy, cache: Path) -> list[ListedTask]:
    """Return the tasks of a git repository. A cached commit needs no network.

    Raises:
        TaskError: The repository cannot be fetched, or has no task.
    """
    repository = parse_repository(source)
    if repository is None:
        raise TaskError(f"{source!r} is not a git URL", hint="https://…, ssh://… or user@host:path")
    trees = GitTrees(cache)
    url = repository.url
    commit = trees.resolve(url, repository.ref, protocols=LOCAL)
    if repository.folder is not None:
        root = trees.tree(url, commit, repository.folder, protocols=LOCAL)
    else:
        try:
            root = trees.tree(url, commit, _TASKS, protocols=LOCAL)
        except TaskError as error:
            if error.retryable:
                raise
            root = trees.tree(url, commit, "", protocols=LOCAL)
    return read_directory(root, policy, own=False)
