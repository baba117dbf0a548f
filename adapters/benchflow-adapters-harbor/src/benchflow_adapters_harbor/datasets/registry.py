"""`registry.json`: datasets whose tasks are in git repositories, each at a commit."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from benchflow_contracts import ListedTask, TaskError, UsageError
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator

from benchflow_adapters_harbor.config import Record
from benchflow_adapters_harbor.files import check_inside
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.toml_text import validate

from .directory import digest_text
from .download import MAX_BYTES, download
from .git import LOCAL, REMOTE, GitTrees, inner_path
from .listing import check_digest, list_task, refused_task


class RegistryTask(Record):
    """The place of one task."""

    name: str
    git_url: str | None = None
    """If None, `path` is below the directory of the registry file."""
    git_commit_id: str | None = None
    """None is the tip of the default branch. The task is then not pinned."""
    path: str
    digest: Annotated[str, AfterValidator(digest_text)] | None = None
    """The digest that the task's content must have. Harbor does not have this field."""


class RegistryDataset(Record):
    """A version of a dataset."""

    name: str
    version: str
    description: str = ""
    tasks: tuple[RegistryTask, ...] = ()
    metrics: tuple[Mapping[str, Any], ...] = ()


class Registry(Record):
    """The content of a `registry.json`."""

    datasets: tuple[RegistryDataset, ...]

    def choose(self, selector: str | None) -> RegistryDataset:
        """Return the dataset `NAME` in its best version, or `NAME@VERSION`.

        The best version is `head`, else the highest version, else the last in text order.

        Raises:
            UsageError: There is no such dataset, or there are several and `selector` is None.
        """
        known = sorted({f"{found.name}@{found.version}" for found in self.datasets})
        hint = f"--dataset one of: {', '.join(known[:20])}{' …' if len(known) > 20 else ''}"
        name, _, version = (selector or "").partition("@")
        if selector is None and len({found.name for found in self.datasets}) > 1:
            raise UsageError(f"the registry has {len(known)} datasets", hint=hint)
        found = [
            each
            for each in self.datasets
            if (not name or each.name == name) and (not version or each.version == version)
        ]
        if not found:
            raise UsageError(f"the registry has no dataset {selector!r}", hint=hint)
        return max(found, key=lambda each: _rank(each.version))


def read_registry(
    source: str, policy: HostPolicy, cache: Path, *, dataset: str | None = None
) -> list[ListedTask]:
    """Return the tasks of a dataset of a `registry.json`, a file or an `https://` URL.

    `URL#sha256=HEX` is checked and cached, and then needs no network. Git checks the commits,
    which are cached too. A task that cannot be fetched is refused; the others are listed.

    Raises:
        TaskError: The registry cannot be read or is malformed.
        UsageError: `dataset` is unknown, or is missing and there are several.
    """
    remote = "://" in source
    data = download(source, cache) if remote else _read(Path(source))
    registry = _parse(data, source)
    home = None if remote else Path(source).resolve().parent
    version = registry.choose(dataset)
    trees = _Trees(GitTrees(cache), version, REMOTE if remote else LOCAL)
    return list(_tasks(version, home, trees, policy))


def _rank(version: str) -> tuple[bool, bool, Version, str]:
    try:
        return version == "head", True, Version(version), version
    except InvalidVersion:
        return version == "head", False, Version("0"), version


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise TaskError(f"cannot be read: {error}", where=str(file)) from error
    if len(data) > MAX_BYTES:
        raise TaskError("larger than 64 MiB", where=str(file), hint="split it")
    return data


def _parse(data: bytes, source: str) -> Registry:
    try:
        rows: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}", where=source, hint="repair the file") from error
    return validate(Registry, {"datasets": rows}, Path(source))


class _Trees:
    """The trees of one dataset. Each repository is fetched once for each commit."""

    def __init__(
        self, trees: GitTrees, dataset: RegistryDataset, protocols: tuple[str, ...]
    ) -> None:
        self._trees = trees
        self._protocols = protocols
        self._shared: dict[tuple[str, str | None], str] = {}
        self._fetched: dict[tuple[str, str | None], Path | TaskError] = {}
        for task in dataset.tasks:
            if task.git_url is not None and _is_inner(task.path):
                key = (task.git_url, task.git_commit_id)
                path = inner_path(task.path)
                self._shared[key] = _common(self._shared.get(key, path), path)

    def find(self, task: RegistryTask, url: str) -> Path:
        path = inner_path(task.path)
        key = (url, task.git_commit_id)
        shared = self._shared[key]
        if key not in self._fetched:
            try:
                commit = self._trees.resolve(url, task.git_commit_id, protocols=self._protocols)
                tree = self._trees.tree(url, commit, shared, protocols=self._protocols)
                self._fetched[key] = tree
            except TaskError as error:
                self._fetched[key] = error
        root = self._fetched[key]
        if isinstance(root, TaskError):
            raise root
        found = root / PurePosixPath(path).relative_to(shared or ".")
        if found.resolve() != root.resolve() / PurePosixPath(path).relative_to(shared or "."):
            raise TaskError("the path contains a link", where=task.path, hint="name its folder")
        return found


def _tasks(
    dataset: RegistryDataset, home: Path | None, trees: _Trees, policy: HostPolicy
) -> Iterator[ListedTask]:
    for task in dataset.tasks:
        try:
            path = (
                _local_path(task, home) if task.git_url is None else trees.find(task, task.git_url)
            )
        except TaskError as error:
            yield refused_task(task.name, error)
            continue
        found = list_task(task.name, path, policy)
        yield check_digest(found.model_copy(update={"name": task.name}), task.digest)


def _local_path(task: RegistryTask, home: Path | None) -> Path:
    if home is None:
        raise TaskError(
            "a registry from the network names a path of this machine",
            where=task.path[:200],
            hint="give the task a git_url",
        )
    return check_inside(home, home / inner_path(task.path))


def _is_inner(path: str) -> bool:
    try:
        inner_path(path)
    except TaskError:
        return False
    return True


def _common(left: str, right: str) -> str:
    pairs = zip(PurePosixPath(left).parts, PurePosixPath(right).parts, strict=False)
    same: list[str] = []
    for one, other in pairs:
        if one != other:
            break
        same.append(one)
    return "/".join(same)
