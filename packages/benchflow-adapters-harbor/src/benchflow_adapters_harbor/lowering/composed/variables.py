"""The variables of a compose file."""

from typing import Final

from benchflow_contracts import TaskError

from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.task import HarborTask

from .dotenv import read_variables

MAX_BYTES: Final = 256 * 1024
_SIDES: Final = ("HOST", "ENV")
LOGS: Final = {
    "VERIFIER_LOGS": "/logs/verifier",
    "AGENT_LOGS": "/logs/agent",
    "ARTIFACTS": "/logs/artifacts",
}


def compose_variables(task: HarborTask) -> dict[str, str]:
    """Return what Harbor 0.24 sets for compose: the task's variables, and its own over them.

    Below them are those of `environment/.env`, which compose reads by itself.

    Raises:
        TaskError: That file cannot be read.
    """
    environment = task.config.environment
    own = {name: text for name, text in environment.env.items() if "$" not in text}
    own |= {"CONTEXT_DIR": str(task.context), "MAIN_IMAGE_NAME": "main"}
    own |= {f"{side}_{name}_PATH": path for name, path in LOGS.items() for side in _SIDES}
    if environment.docker_image:
        own["PREBUILT_IMAGE_NAME"] = environment.docker_image
    if environment.cpus:
        own["CPUS"] = str(environment.cpus)
    if environment.memory_mb:
        own["MEMORY"] = f"{environment.memory_mb}M"
    return {**_beside(task, own), **own}


def _beside(task: HarborTask, known: dict[str, str]) -> dict[str, str]:
    file = task.context / ".env"
    if not file.is_file():
        return {}
    try:
        return read_variables(read_text(task.path, file, cap=MAX_BYTES), known)
    except ValueError as error:
        raise TaskError(str(error), where=str(file), hint="correct the line") from error
