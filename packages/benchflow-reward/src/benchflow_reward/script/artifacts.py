"""Declared artifacts: which paths may be one, and what is cut out of them."""

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from benchflow_contracts import RewardError, Task

from .layout import EVIDENCE, PINNED_PATH, TESTS, TOOLS

_OURS = (TESTS, TOOLS, EVIDENCE, "/logs", "/proc", "/sys", "/dev")
_SYSTEM = (*PINNED_PATH.split(":"), "/etc", "/lib", "/lib64", "/usr/lib", "/usr/local/lib")

_START_UP = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"),
        *("sitecustomize.py", "usercustomize.py", "pyvenv.cfg"),
    }
)
_START_UP_DIRS = frozenset({"__pycache__", "sitecustomize", "usercustomize"})


def declared_artifacts(task: Task) -> tuple[str, ...]:
    """Return the declared paths, checked and normalised.

    Raises:
        RewardError: One is not absolute, is part of the grading box's own
            machinery, or would replace a whole system directory.
    """
    return tuple(_checked(item.source, task.id) for item in task.config.artifacts)


def _checked(declared: str, task_id: str) -> str:
    path = PurePosixPath(declared)
    hint = "declare the files that the task asks for, by absolute path"
    if not declared.startswith("/") or declared.startswith("//") or ".." in path.parts:
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is not absolute", hint=hint)
    if any(path == PurePosixPath(ours) or PurePosixPath(ours) in path.parents for ours in _OURS):
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is the grader's", hint=hint)
    if any(
        path == PurePosixPath(d) or path in PurePosixPath(d).parents for d in (*_OURS, *_SYSTEM)
    ):
        raise RewardError(f"task {task_id!r}: artifact {declared!r} is a system path", hint=hint)
    return str(path)


def strip_start_up_files(local: Path, remote: str, declared: Iterable[str]) -> list[str]:
    """Cut out of a copied tree what steers interpreters and test runners.

    Removes conftest.py, pytest.ini, tox.ini, setup.cfg, *.pth, sitecustomize,
    usercustomize, bytecode caches and .git/hooks, unless that very path is
    declared. Makes everything else plainly readable and drops set-id bits.
    Returns the removed paths as they were in the box.
    """
    kept = frozenset(declared)
    removed: list[str] = []
    for directory, subdirs, files in os.walk(local):
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
        return name in _START_UP_DIRS or (name == "hooks" and inside.name == ".git")
    return name in _START_UP or name.endswith(".pth")


def _make_readable(path: Path) -> None:
    executable = path.stat().st_mode & stat.S_IXUSR
    path.chmod(0o755 if executable else 0o644)
