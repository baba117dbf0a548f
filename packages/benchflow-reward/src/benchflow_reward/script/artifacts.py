"""Declared artifacts: their permitted paths, and the files that are removed from them."""

import os
import shutil
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath

from benchflow_contracts import Artifact, RewardError, Task
from benchflow_contracts.cause import refuse_shortage

from .grading_protocol import ProtocolRules
from .layout import PINNED_PATH

_KERNEL = ("/proc", "/sys", "/dev")
_HINT = "declare the files that the task asks for, by absolute path"
_SYSTEM = (*PINNED_PATH.split(":"), "/etc", "/lib", "/lib64", "/usr/lib", "/usr/local/lib")

START_UP = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"),
        *("sitecustomize.py", "usercustomize.py", "pyvenv.cfg"),
    }
)
START_UP_DIRS = frozenset({"__pycache__", "sitecustomize", "usercustomize"})


def declared_artifacts(task: Task, rules: ProtocolRules, workdir: str) -> tuple[Artifact, ...]:
    """Return the artifacts of the task and of the rules, by absolute and normalised paths.

    If the rules allow relative paths, these are below `workdir`.

    Raises:
        RewardError: A path is not absolute.
    """
    declared = task.config.artifacts
    if rules.relative_artifacts:
        declared = tuple(_below(workdir, artifact) for artifact in declared)
    places = {PurePosixPath(item.source) for item in declared}
    added = [path for path in rules.artifacts if PurePosixPath(path) not in places]
    declared = (*(Artifact(source=path) for path in added), *declared)
    return tuple(_absolute(artifact, task.id) for artifact in declared)


def _below(workdir: str, artifact: Artifact) -> Artifact:
    return artifact.model_copy(update={"source": str(PurePosixPath(workdir, artifact.source))})


def _absolute(artifact: Artifact, task_id: str) -> Artifact:
    declared, path = artifact.source, PurePosixPath(artifact.source)
    if not declared.startswith("/") or declared.startswith("//") or ".." in path.parts:
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is not absolute", hint=_HINT)
    return artifact.model_copy(update={"source": str(path)})


def check_placeable(artifacts: Iterable[Artifact], rules: ProtocolRules, task: Task) -> None:
    """Refuse paths that must not be copied into a grading sandbox.

    Raises:
        RewardError: A path is part of the grading sandbox's own machinery, or would replace a
            whole system directory.
    """
    for artifact in artifacts:
        _check_placeable(artifact.source, (*rules.closed_paths, *_KERNEL), task.id)


def _check_placeable(declared: str, closed: tuple[str, ...], task_id: str) -> None:
    path, hint = PurePosixPath(declared), _HINT
    if any(path == PurePosixPath(ours) or PurePosixPath(ours) in path.parents for ours in closed):
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is the grader's", hint=hint)
    if any(
        path == PurePosixPath(d) or path in PurePosixPath(d).parents for d in (*closed, *_SYSTEM)
    ):
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is a system path", hint=hint)


def strip_start_up_files(local: Path, remote: str, declared: Iterable[str]) -> list[str]:
    """Remove files that influence interpreters and test runners from a copied tree.

    Removes conftest.py, pytest.ini, tox.ini, setup.cfg, *.pth, sitecustomize,
    usercustomize, bytecode caches and .git/hooks, unless that very path is
    declared. Makes everything else plainly readable and drops set-id bits.
    Returns the removed paths as they were in the sandbox.

    Raises:
        HostError: The host could not read a directory.
    """
    kept = frozenset(declared)
    removed: list[str] = []
    for directory, subdirs, files in os.walk(
        local, onerror=partial(refuse_shortage, "read artifacts")
    ):
        base = Path(directory)
        inside = PurePosixPath(remote, base.relative_to(local).as_posix())
        base.chmod(0o755)
        for name in [*subdirs, *files]:
            path = str(inside / name)
            is_dir = name in subdirs
            if path not in kept and _steers(inside, name, is_dir=is_dir):
                shutil.rmtree(base / name) if is_dir else (base / name).unlink()
                removed.append(path)
            elif not is_dir:
                _make_readable(base / name)
        subdirs[:] = [name for name in subdirs if str(inside / name) not in removed]
    if local.is_file():
        _make_readable(local)
    return removed


def _steers(inside: PurePosixPath, name: str, *, is_dir: bool) -> bool:
    if is_dir:
        return name in START_UP_DIRS or (name == "hooks" and inside.name == ".git")
    return name in START_UP or name.endswith(".pth")


def _make_readable(path: Path) -> None:
    executable = path.stat().st_mode & stat.S_IXUSR
    path.chmod(0o755 if executable else 0o644)
