"""Report the reasons why a task cannot run here."""

from collections.abc import Iterator

from benchflow_contracts import TaskError, TaskRefusal

from .client_service import client_name, unsupported_service_keys
from .config import HarborEnvironment, NetworkPolicy
from .config.artifact import MAIN
from .config.network import is_inside_host_network
from .host_access import host_access_requests
from .host_policy import HostPolicy
from .lowering import lower
from .task import HarborStep, HarborTask


def blockers(task: HarborTask, policy: HostPolicy) -> Iterator[TaskRefusal]:
    """Yield each request that `policy` or a Task does not support, else values out of range."""
    known_refusals = [*refusals(task, policy), *unsupported(task)]
    yield from known_refusals
    if not known_refusals:
        try:
            lower(task, policy)
        except TaskError as error:
            where = error.where
            if where is not None and task.terminal_bench is not None:
                # Name the service as the author wrote it; `main` is its name in the layout.
                where = where.replace(":services.main", f":services.{client_name(task)}")
            yield TaskRefusal(where=where, reason=str(error.args[0]), hint=error.hint)


def refusals(task: HarborTask, policy: HostPolicy = HostPolicy()) -> Iterator[TaskRefusal]:  # noqa: B008
    """Yield each reason why `task` cannot run under `policy` as its author intended."""
    file = task.path / ("task.yaml" if task.format == "terminal-bench" else "task.toml")
    for key, reason, hint in _needs(task, policy):
        yield TaskRefusal(where=f"{file}:{key}", reason=reason, hint=hint)
    if not (task.dockerfile or task.compose or task.config.environment.docker_image):
        yield TaskRefusal(
            where=f"{file}:environment",
            reason="there is neither an image nor a Dockerfile",
            hint="add environment/Dockerfile or environment.docker_image",
        )
    if task.compose is not None and not policy.host_access:
        compose = task.context / "docker-compose.yaml"
        for key, reason in host_access_requests(task.compose):
            hint = "--trust-host-access lets a trusted task mount paths of this machine"
            yield TaskRefusal(where=f"{compose}:{key}", reason=reason, hint=hint)


def _needs(task: HarborTask, policy: HostPolicy) -> Iterator[tuple[str, str, str]]:
    for key, environment in _environments(task):
        yield from _hardware(key, environment, policy)
    seen = set[str]()
    for key, network in _policies(task):
        mode = network.network_mode
        if mode not in policy.networks and mode not in seen:
            seen.add(mode)
            reason = f"network mode {mode!r} cannot be enforced here"
            yield key, reason, "choose a provider that can enforce it"
        hosts_key = key.replace("network_mode", "allowed_hosts")
        for host in filter(is_inside_host_network, network.allowed_hosts):
            if not policy.host_access and host not in seen:
                seen.add(host)
                reason = f"{host} leads to this machine or its networks"
                yield hosts_key, reason, "--trust-host-access allows it for a trusted task"


def _hardware(
    key: str, environment: HarborEnvironment, policy: HostPolicy
) -> Iterator[tuple[str, str, str]]:
    elsewhere = "run the task on a host that has one"
    if environment.gpus and not policy.gpus:
        yield f"{key}.gpus", f"needs {environment.gpus} GPU, and none is available here", elsewhere
    if environment.tpu is not None and not policy.tpus:
        yield f"{key}.tpu", f"needs a TPU {environment.tpu.type!r}", elsewhere
    if environment.os == "windows" and not policy.windows:
        yield f"{key}.os", "needs Windows containers", "run it on a Windows host"


def _environments(task: HarborTask) -> Iterator[tuple[str, HarborEnvironment]]:
    yield "environment", task.config.environment
    for index, step in enumerate(task.steps):
        if step.verifier.environment is not None:
            where = "" if step.name is None else f"steps.{index}."
            yield f"{where}verifier.environment", step.verifier.environment


def _policies(task: HarborTask) -> Iterator[tuple[str, NetworkPolicy]]:
    yield "environment.network_mode", task.config.environment.policy()
    for index, step in enumerate(task.steps):
        where = "" if step.name is None else f"steps.{index}."
        yield f"{where}agent.network_mode", step.network
        yield f"{where}verifier.network_mode", step.verifier.network
        if step.verifier.environment is not None:
            yield (
                f"{where}verifier.environment.network_mode",
                step.verifier.environment.policy(),
            )


_WITH_HARBOR = "run the task with Harbor itself"


def unsupported(task: HarborTask) -> Iterator[TaskRefusal]:
    """Yield each request of `task` that a Task cannot express and that lowering would lose."""
    file = task.path / ("task.yaml" if task.format == "terminal-bench" else "task.toml")
    compose = task.context / "docker-compose.yaml"
    if task.terminal_bench is not None:
        for key, reason in unsupported_service_keys(task):
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
