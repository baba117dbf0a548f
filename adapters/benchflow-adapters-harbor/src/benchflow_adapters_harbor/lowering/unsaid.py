"""What a Harbor task may ask for and no Task of ours can say: refused, never left out."""

from collections.abc import Iterator

from benchflow_contracts import TaskRefusal

from benchflow_adapters_harbor.client_service import beyond_a_layout
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.task import HarborStep, HarborTask

_WITH_HARBOR = "run it with Harbor itself"


def unsaid(task: HarborTask) -> Iterator[TaskRefusal]:
    """Yield each wish of `task` that would be lost when it is lowered."""
    file = task.path / ("task.yaml" if task.format == "terminal-bench" else "task.toml")
    compose = task.context / "docker-compose.yaml"
    if task.terminal_bench is not None:
        for key, reason in beyond_a_layout(task):
            yield TaskRefusal(where=f"{compose}:{key}", reason=reason, hint=_WITH_HARBOR)
    for index, step in enumerate(task.steps):
        prefix = "" if step.name is None else f"steps.{index}."
        for key, reason in _of_step(task, step):
            yield TaskRefusal(where=f"{file}:{prefix}{key}", reason=reason, hint=_WITH_HARBOR)


def _of_step(task: HarborTask, step: HarborStep) -> Iterator[tuple[str, str]]:
    services = {None, MAIN, *(task.compose.services if task.compose else ())}
    for index, artifact in enumerate(step.artifacts):
        if artifact.service not in services:
            yield f"artifacts.{index}", f"there is no container {artifact.service!r} to copy from"
    for index, hook in enumerate(step.collect):
        if hook.service not in services:
            yield f"verifier.collect.{index}", f"there is no container {hook.service!r} to run in"
