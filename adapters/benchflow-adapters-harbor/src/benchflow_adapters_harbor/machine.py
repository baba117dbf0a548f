"""What a task needs that this machine, as far as BenchFlow drives it, has not got."""

import os
from collections.abc import Iterator, Mapping

from benchflow_contracts import AdapterOptions, TaskRefusal

from .config import HarborEnvironment, NetworkPolicy, Record
from .config.network import NetworkMode
from .host_reach import reaches_for_host
from .task import HarborTask


class Machine(Record):
    """What sandboxes can be given here. The defaults are what every provider of ours gives."""

    gpus: bool = False
    tpus: bool = False
    windows: bool = False
    networks: frozenset[NetworkMode] = frozenset({"public", "no-network", "allowlist"})
    """A sandbox that cannot hold a box to one of them refuses the box."""
    host_access: bool = False
    """Compose files may mount and read paths of this host."""
    forwarded: Mapping[str, str] = {}
    """Variables of the operator that a compose file may name. Never recorded."""
    force_build: bool = False
    """Build from a Dockerfile also where the task names an image."""

    def allowing(self, options: AdapterOptions) -> "Machine":
        """Return it with what an operator allows the tasks, and with the values of variables."""
        found = {name: os.environ[name] for name in options.forward_env if name in os.environ}
        return self.model_copy(
            update={
                "host_access": self.host_access or options.trust_host_access,
                "force_build": self.force_build or options.force_build,
                "forwarded": {**self.forwarded, **found},
            }
        )


def refusals(task: HarborTask, machine: Machine = Machine()) -> Iterator[TaskRefusal]:  # noqa: B008
    """Yield each reason why `task` cannot be run on `machine` as its author meant it."""
    file = task.path / ("task.yaml" if task.format == "terminal-bench" else "task.toml")
    for key, reason, hint in _needs(task, machine):
        yield TaskRefusal(where=f"{file}:{key}", reason=reason, hint=hint)
    if not (task.dockerfile or task.compose or task.config.environment.docker_image):
        yield TaskRefusal(
            where=f"{file}:environment",
            reason="there is nothing to make a container of",
            hint="add environment/Dockerfile or environment.docker_image",
        )
    if task.compose is not None and not machine.host_access:
        compose = task.context / "docker-compose.yaml"
        for key, reason in reaches_for_host(task.compose):
            hint = "only a trusted task: --trust-host-access lets it mount paths of this machine"
            yield TaskRefusal(where=f"{compose}:{key}", reason=reason, hint=hint)


def _needs(task: HarborTask, machine: Machine) -> Iterator[tuple[str, str, str]]:
    for key, environment in _environments(task):
        yield from _hardware(key, environment, machine)
    seen: set[NetworkMode] = set()
    for key, policy in _policies(task):
        mode = policy.network_mode
        if mode not in machine.networks and mode not in seen:
            seen.add(mode)
            reason = f"network mode {mode!r} cannot be enforced here"
            yield key, reason, "choose a provider that can: it is never run with more"


def _hardware(
    key: str, environment: HarborEnvironment, machine: Machine
) -> Iterator[tuple[str, str, str]]:
    elsewhere = "run it where there is one"
    if environment.gpus and not machine.gpus:
        yield f"{key}.gpus", f"needs {environment.gpus} GPU, and none can be given", elsewhere
    if environment.tpu is not None and not machine.tpus:
        yield f"{key}.tpu", f"needs a TPU {environment.tpu.type!r}", elsewhere
    if environment.os == "windows" and not machine.windows:
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
