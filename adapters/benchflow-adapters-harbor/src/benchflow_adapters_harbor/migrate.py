"""Convert an old Terminal-Bench task to a Harbor task, as `harbor task migrate` does."""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from benchflow_contracts import TaskError
from benchflow_contracts.cause import refuse_shortage

from .client_service import (
    build_context,
    dockerfile_lines,
    dockerfile_name,
    harbor_compose,
    prebuilt_image,
)
from .files import check_inside, check_tree
from .task import HarborTask

_MOVED: Final = {"docker-compose.yaml", "task.yaml", "solution.sh", "run-tests.sh", "tests"}
_SCORE: Final = """
_EXIT_CODE=$?
if [ $_EXIT_CODE -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
exit $_EXIT_CODE
"""
"""Copied from Harbor 0.24: the exit code of run-tests.sh gives the reward."""


def migrate(task: HarborTask, cache: Path) -> HarborTask:
    """Copy `task` below `cache` in Harbor's layout, and return it with the new paths.

    The copy has the name `layout_key`. Nothing outside the task is read.

    Raises:
        TaskError: There is no Dockerfile, or a link leaves the task.
    """
    check_tree(task.path, task.path)
    home = cache / "terminal-bench" / layout_key(task.path)
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(mkdtemp(prefix="stage-", dir=home.parent))
        try:
            _write(task, stage)
            _move_into_cache(stage, home)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    step = task.steps[0]
    verifier = step.verifier.model_copy(
        update={"tests": (home / "tests",), "script": home / "tests" / "test.sh"}
    )
    solution = home / "solution" / "solve.sh" if step.solution else None
    new_step = step.model_copy(update={"verifier": verifier, "solution": solution})
    context = home / "environment"
    is_migrated = {"context": context, "dockerfile": True, "compose": harbor_compose(task)}
    return task.model_copy(update={**is_migrated, "steps": (new_step,), "is_migrated": True})


def _move_into_cache(stage: Path, home: Path) -> None:
    try:
        stage.rename(home)
    except OSError:
        # Another process was first, with the same content.
        if not home.is_dir():
            raise


def _write(task: HarborTask, home: Path) -> None:
    root = task.path
    tests, environment = home / "tests", home / "environment"
    if (root / "tests").is_dir():
        shutil.copytree(root / "tests", tests)
    tests.mkdir(exist_ok=True)
    script = (root / "run-tests.sh").read_text(encoding="utf-8")
    script += "" if script.endswith("\n") else "\n"
    _write_script(tests / "test.sh", (script + _SCORE).replace("$TEST_DIR", "/tests"))
    if (root / "solution.sh").is_file():
        (home / "solution").mkdir()
        text = (root / "solution.sh").read_text(encoding="utf-8")
        _write_script(home / "solution" / "solve.sh", text)
    _write_context(task, environment)


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _write_context(task: HarborTask, environment: Path) -> None:
    """Copy the files that the image is built from, without the tests and the solution."""
    root, context = task.path, build_context(task)
    source = check_inside(root, root / context)
    environment.mkdir()
    for item in sorted(root.iterdir()):
        if item.name not in _MOVED and item.name != context.partition("/")[0]:
            _copy(item, environment / item.name)
    for item in sorted(source.iterdir()) if context else ():
        _copy(item, environment / item.name)
    text = _dockerfile(task, environment)
    for name in sorted(_copied_names(text) & {"tests", "solution.sh", "run-tests.sh"}):
        if (root / name).exists() and not (environment / name).exists():
            _copy(root / name, environment / name)
    lines = "\n".join(dockerfile_lines(task))
    text = f"{text.rstrip()}\n\n# From docker-compose.yaml\n{lines}\n"
    (environment / "Dockerfile").write_text(text, encoding="utf-8")


def _copied_names(dockerfile: str) -> set[str]:
    """Return the first component of each path that a Dockerfile copies."""
    found = set[str]()
    for line in dockerfile.replace("\\\n", " ").splitlines():
        verb, *words = re.sub(r"""["'\[\],]""", " ", line).split() or [""]
        if verb.upper() in {"COPY", "ADD"}:
            found |= {word.removeprefix("./").partition("/")[0] for word in words[:-1]}
    return found


def _dockerfile(task: HarborTask, environment: Path) -> str:
    name = dockerfile_name(task)
    if (file := check_inside(environment, environment / name)).is_file():
        return file.read_text(encoding="utf-8")
    if image := prebuilt_image(task):
        return f"FROM {image}\n"
    where, hint = str(task.path / build_context(task) / name), "add one, or name an image"
    raise TaskError("there is no Dockerfile to build", where=where, hint=hint)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def layout_key(root: Path) -> str:
    """Return a hexadecimal digest of everything that determines the layout of `root`.

    The digest covers each name below `root` with its type, its mode, and its content or link
    target. It includes empty directories and files that `.gitignore` names. It also covers
    the code of this package, because other code may make another layout. `root` must have
    passed `check_tree`.
    """
    found = hashlib.sha256(_code())
    for path in _entries(root):
        mode = path.lstat().st_mode
        name = path.relative_to(root).as_posix()
        found.update(f"{name}\0{mode:o}\0{_content(path, mode)}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _entries(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=partial(refuse_shortage, "read a task")):
        folders.sort()
        yield from (Path(folder, name) for name in sorted([*folders, *files]))


def _content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    if not stat.S_ISREG(mode):
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _code() -> bytes:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in sources)
