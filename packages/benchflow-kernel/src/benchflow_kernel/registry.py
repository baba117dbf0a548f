"""Find providers by name."""

import difflib
import os
import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    entry_points,
    metadata,
)
from pathlib import Path
from typing import Final

from benchflow_contracts import BenchFlowError, UsageError

from benchflow_kernel.errors import UnknownProviderError

GROUPS: Final = (
    "benchflow.sandboxes",
    "benchflow.agents",
    "benchflow.environments",
    "benchflow.rewards",
    "benchflow.grading_protocols",
    "benchflow.adapters",
    "benchflow.task_sources",
    "benchflow.task_servers",
    "benchflow.exporters",
    "benchflow.importers",
    "benchflow.backends",
    "benchflow.commands",
)
"""Every entry-point group that BenchFlow reads."""

_PLUGINS: Final = "BENCHFLOW_PLUGINS"
_FACADE: Final = "benchflow"


class Registry:
    """Resolves entry points by group and name; imports only the requested one.

    If the environment variable `BENCHFLOW_PLUGINS` is set, only the distributions in it
    count: names separated by commas, or none if it is empty.
    """

    def names(self, group: str) -> list[str]:
        """Return the names known in `group`, sorted. Nothing is imported."""
        return sorted({point.name for point in _points(group)})

    def resolve(self, group: str, name: str) -> object:
        """Return the object named `name`. It follows the contract of `group`.

        Raises:
            UnknownProviderError: No distribution provides the name.
            UsageError: Two distributions provide the name, or the import failed.
        """
        points = [point for point in _points(group) if point.name == name]
        if not points:
            raise self._unknown(group, name)
        if len({point.value for point in points}) > 1:
            owners = " and ".join(sorted(_owner(point) for point in points))
            raise UsageError(
                f"{group} {name!r} is provided by {owners}",
                hint=f"uninstall one of them, or name the other ones in {_PLUGINS}",
            )
        return _load(points[0])

    def _unknown(self, group: str, name: str) -> UnknownProviderError:
        known = self.names(group)
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        message = f"no {group} named {name!r}; known: {', '.join(known) or 'none'}{suggestion}"
        # One extra may provide several names, as `nemo-gym` provides `nemo-gym-agent`.
        extras = [each for each in _extras() if name == each or name.startswith(f"{each}-")]
        hint = f"pip install '{_FACADE}[{max(extras, key=len)}]'" if extras else None
        return UnknownProviderError(message, hint=hint)


def load_path(path: str) -> object:
    """Import `module:attr`, which an operator gives on the command line.

    The import runs the code in the module, so `path` must never come from a task, a
    manifest or an agent.

    Raises:
        UsageError: The path has another form, or cannot be imported.
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"import path {path!r} is not of the form 'module:attr'")
    try:
        value: object = import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except BenchFlowError:
        raise
    except Exception as error:
        raise UsageError(
            f"import path {path!r} cannot be loaded: {type(error).__name__}: {error}",
            hint="the module must be importable from the current directory or be installed",
        ) from error
    return value


def _points(group: str) -> list[EntryPoint]:
    if group not in GROUPS:
        raise UsageError(f"{group!r} is not a registry group; known: {', '.join(GROUPS)}")
    points = list(_entry_points(_search_path())[group])
    plugins = os.environ.get(_PLUGINS)
    if plugins is None:
        return points
    allowed = {name.strip() for name in plugins.split(",")}
    return [point for point in points if point.dist is not None and point.dist.name in allowed]


@lru_cache(maxsize=1)
def _entry_points(search_path: tuple[tuple[str, int], ...]) -> dict[str, EntryPoints]:
    """Read the entry points of every distribution, once while `search_path` is unchanged."""
    del search_path
    points = entry_points()
    return {group: points.select(group=group) for group in GROUPS}


def _search_path() -> tuple[tuple[str, int], ...]:
    """Return the directories of distributions, and the time of their last change."""
    return tuple((name, _modified_ns(Path(name))) for name in sys.path)


def _modified_ns(directory: Path) -> int:
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return 0


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except BenchFlowError:
        raise
    except Exception as error:
        raise UsageError(
            f"{point.group} {point.name!r} of {_owner(point)} cannot be loaded from"
            f" {point.value!r}: {type(error).__name__}: {error}",
            hint="reinstall or upgrade that distribution",
        ) from error


def _owner(point: EntryPoint) -> str:
    dist = point.dist
    return "an unknown distribution" if dist is None else f"{dist.name} {dist.version}"


def _extras() -> frozenset[str]:
    """Return the extras of the installed `benchflow` package, from its metadata."""
    try:
        return frozenset(metadata(_FACADE).get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return frozenset()
