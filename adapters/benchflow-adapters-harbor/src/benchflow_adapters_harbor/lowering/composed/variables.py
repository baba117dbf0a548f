"""The variables of a compose file."""

import re
from collections.abc import Mapping
from typing import Final

from benchflow_contracts import TaskError

from benchflow_adapters_harbor.client_service import harbor_compose
from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.task import HarborTask

from .dotenv import read_variables
from .interpolation import filled

MAX_BYTES: Final = 256 * 1024
_SIDES: Final = ("HOST", "ENV")
LOGS: Final = {
    "VERIFIER_LOGS": "/logs/verifier",
    "AGENT_LOGS": "/logs/agent",
    "ARTIFACTS": "/logs/artifacts",
}
_OF_THE_HOST: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
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
"""What Terminal-Bench sets for the compose file of an old task."""


def compose_variables(task: HarborTask, forwarded: Mapping[str, str]) -> dict[str, str]:
    """Return what Harbor 0.24 sets for compose: the task's variables, and its own over them.

    Below them are those that the operator forwards, and below these are those of
    `environment/.env`, which compose reads by itself.

    Raises:
        TaskError: That file cannot be read.
    """
    environment = task.config.environment
    own = dict(_OLD) if task.terminal_bench is not None else {}
    for name, text in environment.env.items():
        match = _OF_THE_HOST.fullmatch(text)
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
    given = {**forwarded, **own}
    return {**_beside(task, given), **given}


def unset_variables(task: HarborTask, forwarded: Mapping[str, str]) -> list[str]:
    """Return the variables that the compose file names and nobody sets, without a default."""
    old = task.terminal_bench is not None and not task.laid_out
    compose = harbor_compose(task) if old else task.compose
    unset = set[str]()
    if compose is not None:
        try:
            filled(compose.document, compose_variables(task, forwarded), unset)
        except (TaskError, ValueError):
            # The task is refused for that.
            return []
    return sorted(unset)


def _beside(task: HarborTask, known: dict[str, str]) -> dict[str, str]:
    file = task.context / ".env"
    if not file.is_file():
        return {}
    try:
        return read_variables(read_text(task.path, file, cap=MAX_BYTES), known)
    except ValueError as error:
        raise TaskError(str(error), where=str(file), hint="correct the line") from error
