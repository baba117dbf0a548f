"""The variables of a compose file, and files of variables."""

import re
from collections.abc import Mapping
from typing import Final

from benchflow_contracts import TaskError

from benchflow_adapters_harbor.client_service import harbor_compose
from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.task import HarborTask

from .interpolation import interpolate, interpolate_text

MAX_BYTES: Final = 256 * 1024
_SIDES: Final = ("HOST", "ENV")
LOGS: Final = {
    "VERIFIER_LOGS": "/logs/verifier",
    "AGENT_LOGS": "/logs/agent",
    "ARTIFACTS": "/logs/artifacts",
}
_HOST_VARIABLE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
OLD_LOGS: Final = {"LOGS": "/logs", "AGENT_LOGS": "/agent-logs"}
_OLD: Final = {
    **{
        f"T_BENCH_{side}_{k}_PATH": v for k, v in OLD_LOGS.items() for side in ("TASK", "CONTAINER")
    },
    "T_BENCH_TEST_DIR": "/tests",
    "T_BENCH_TASK_DOCKER_NAME_PREFIX": "hb",
    "T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME": "main",
    "T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME": "main",
}
"""The variables that Terminal-Bench sets for the compose file of an old task."""


def compose_variables(task: HarborTask, forwarded: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Harbor 0.24 sets for compose.

    In decreasing order of precedence: Harbor's own variables, those of the task, those that
    the operator forwards, and those of `environment/.env`, which compose itself reads.

    Raises:
        TaskError: `environment/.env` cannot be read.
    """
    environment = task.config.environment
    own = dict(_OLD) if task.terminal_bench is not None else {}
    for name, text in environment.env.items():
        match = _HOST_VARIABLE.fullmatch(text)
        value = text if "$" not in text else match and forwarded.get(match[1], match[2])
        if value is not None:
            own[name] = value
    own |= {"CONTEXT_DIR": str(task.context), "MAIN_IMAGE_NAME": "main"}
    own |= {f"{side}_{name}_PATH": path for name, path in LOGS.items() for side in _SIDES}
    if environment.docker_image:
        own["PREBUILT_IMAGE_NAME"] = environment.docker_image
    if environment.cpus:
        own["CPUS"] = str(environment.cpus)
    if environment.memory_mb:
        own["MEMORY"] = f"{environment.memory_mb}M"
    combined = {**forwarded, **own}
    return {**_env_file_variables(task, combined), **combined}


def unset_variables(task: HarborTask, forwarded: Mapping[str, str]) -> list[str]:
    """Return the variables that the compose file uses, that are not set and have no default."""
    old = task.terminal_bench is not None and not task.is_migrated
    compose = harbor_compose(task) if old else task.compose
    unset = set[str]()
    if compose is not None:
        try:
            interpolate(compose.document, compose_variables(task, forwarded), unset)
        except (TaskError, ValueError):
            # `blockers` reports this error.
            return []
    return sorted(unset)


def _env_file_variables(task: HarborTask, known: dict[str, str]) -> dict[str, str]:
    file = task.context / ".env"
    if not file.is_file():
        return {}
    try:
        return read_variables(read_text(task.path, file, cap=MAX_BYTES), known)
    except ValueError as error:
        raise TaskError(str(error), where=str(file), hint="correct the line") from error


_ENTRY = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*
    (?:[=:][ \t]*(?:
        '(?P<literal>[^']*)'[ \t]*(?:[ \t]\#.*)?
        |"(?P<quoted>(?:[^"\\]|\\.|\\\n)*)"[ \t]*(?:[ \t]\#.*)?
        |(?P<plain>[^'"\n][^\n]*)?
    ))?(?:\n|\Z)""",
    re.VERBOSE,
)
_BLANK = re.compile(r"[ \t]*(?:\#[^\n]*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$$"}


def read_variables(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file. A value may use `known` and earlier variables.

    A name without a value is the operator's variable, and is left out. The format is that of
    `dotenv` in compose-go.

    Raises:
        ValueError: A line does not have this format, or requires a variable that is not set.
    """
    text, at = text.replace("\r\n", "\n"), 0
    found: dict[str, str] = {}
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        entry = _ENTRY.match(text, at)
        if entry is None:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"line {line} is not NAME=value")
        at = entry.end()
        value = _value(entry, {**known, **found})
        if value is not None:
            found[entry["name"]] = value
    return found


def _value(entry: re.Match[str], known: Mapping[str, str]) -> str | None:
    if entry["literal"] is not None:
        return entry["literal"]
    if entry["quoted"] is not None:
        return interpolate_text(_ESCAPE.sub(_unescaped, entry["quoted"]), known)
    if entry["plain"] is not None:
        return interpolate_text(re.split(r"[ \t]#", entry["plain"], maxsplit=1)[0].rstrip(), known)
    return "" if re.search(r"[=:]", entry[0]) else None


def _unescaped(escape: re.Match[str]) -> str:
    return _MEANT.get(escape[1], escape[0])
