"""Find tests that run the agent's code in their own process, by reading the tests."""

import re
from collections.abc import Iterator
from pathlib import Path

from benchflow_contracts import Model, Task

_MOST_BYTES = 1 << 20
_SKIPPED = frozenset({"vendor", "node_modules", "__pycache__"})
_REMEDY = (
    "declare executes_artifacts = true in [verifier] and call it with /tests-tools/run_untrusted.py"
)
_FOREIGN_REMEDY = "run it as another user, in a separate process, and judge only its output"
_WORKDIR = re.compile(r"^[ \t]*WORKDIR[ \t]+(/[\w./-]+)", re.IGNORECASE | re.MULTILINE)
_INSTALLS = re.compile(r"\bpip3?\s+install\b.*(\s-e\b|\s--editable\b|\s\.(/|\s|$))")
_IMPORTED_BY_NAME = r"(importlib|runpy|SourceFileLoader|spec_from_file_location|exec\s*\(|execfile)"
_AND = r"[\s\"',]+"
_RUNNERS = r"\b(npm|yarn|pnpm|make|rake|cargo|go|mvn|gradlew?|dotnet)"
_JUDGED_THERE = rf"{_RUNNERS}{_AND}(-\S+{_AND})*(run{_AND})?(t|test|check)\b"
_SCRIPT = r"(^|[\s;&|(])(python3?|bash|sh|node|perl|ruby|source|\.)\s+(-\S+\s+)*"


class InProcess(Model):
    """One line of a test that may run the agent's code in the process of the test."""

    file: str
    """Relative to the tests."""
    line: int
    text: str
    why: str
    remedy: str


def own_process_tests(task: Task) -> list[InProcess]:
    """Return the lines of a task's tests that seem to run the agent's code themselves.

    Such code can end the tests with exit code 0, or change the expected values. A sandbox does
    not prevent this. The tests are only read, so a line can be harmless. Empty for a task that
    declares `executes_artifacts`.
    """
    tasks = [task.step(index) for index in range(len(task.steps))] or [task]
    lines: dict[tuple[Path, int], InProcess] = {}
    for each in tasks:
        lines |= _in_tests(each)
    return list(lines.values())


def _in_tests(task: Task) -> dict[tuple[Path, int], InProcess]:
    verifier = task.config.verifier
    if verifier.executes_artifacts or verifier.type != "script":
        return {}
    signs = _signs(task)
    remedy = _REMEDY if verifier.protocol == "benchflow" else _FOREIGN_REMEDY
    lines: dict[tuple[Path, int], InProcess] = {}
    for directory in task.parts.tests:
        for path in sorted(directory.rglob("*")):
            if _is_readable(path, directory):
                name = str(path.relative_to(directory))
                in_file = _in_file(path, name, signs, remedy)
                lines |= {(path, line.line): line for line in in_file}
    return lines


def _signs(task: Task) -> list[tuple[re.Pattern[str], str]]:
    workdir = task.config.environment.workdir or _workdir_of_image(task) or "/app"
    paths = [workdir, *(artifact.source for artifact in task.config.artifacts)]
    patterns = [re.escape(name) for path in paths if (name := path.rstrip("/"))] or ["/app"]
    place = "(" + "|".join(patterns) + r")(?![\w-])"
    return [
        (re.compile(rf"sys\.path.*{place}"), "imports from the agent's directory"),
        (re.compile(rf"PYTHONPATH=\S*{place}"), "imports from the agent's directory"),
        (
            re.compile(rf"{_IMPORTED_BY_NAME}.*{place}"),
            "runs a file of the agent itself",
        ),
        (re.compile(rf"{_SCRIPT}[\"']?{place}"), "runs a script of the agent as the verifier"),
        (re.compile(rf"^\s*[\"']?{place}/\S+"), "runs a program of the agent as the verifier"),
        (_INSTALLS, "installs the agent's package where the tests run"),
        (re.compile(_JUDGED_THERE), "runs a test command that the agent's project defines"),
    ]


def _workdir_of_image(task: Task) -> str | None:
    """Return the last absolute WORKDIR of the task's Dockerfile, or `None`."""
    recipe = task.parts.recipe
    if recipe is None:
        return None
    file, text = recipe.context / recipe.dockerfile, recipe.inline
    if not text and file.is_file() and not file.is_symlink():
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_MOST_BYTES)
    workdirs = _WORKDIR.findall(text)
    return workdirs[-1] if workdirs else None


def _is_readable(path: Path, directory: Path) -> bool:
    parts = path.relative_to(directory).parts
    is_script = path.suffix in {".sh", ".py", ".bash"} and not _SKIPPED & set(parts)
    return is_script and path.is_file() and path.stat().st_size <= _MOST_BYTES


def _in_file(
    path: Path, name: str, signs: list[tuple[re.Pattern[str], str]], remedy: str
) -> Iterator[InProcess]:
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        why = next((why for sign, why in signs if sign.search(line)), None)
        if why is not None:
            yield InProcess(file=name, line=number, text=line.strip()[:120], why=why, remedy=remedy)
