"""The order in which a sandbox and its services are started."""

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from benchflow_contracts.container import ServiceCondition
from benchflow_contracts.errors import UsageError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.service import MAIN


def needs_of(spec: SandboxSpec) -> dict[str, Mapping[str, ServiceCondition]]:
    """Return what each service, and `main`, waits for.

    Raises:
        UsageError: Two have one name, something that is not there is waited for, or one has no
            network but that of the sandbox itself, whose place another may take.
    """
    needs: dict[str, Mapping[str, ServiceCondition]] = {MAIN: spec.container.needs}
    for service in spec.services:
        if service.name in needs:
            raise UsageError(f"two services are named {service.name!r}", where="services")
        shared: dict[str, ServiceCondition] = (
            {service.network_of: "started"} if service.network_of else {}
        )
        needs[service.name] = {**shared, **service.needs}
        if service.network_of == MAIN:
            raise UsageError(
                f"{service.name!r} is in the network of the sandbox itself", where="services"
            )
    for name, wanted in needs.items():
        for other, condition in wanted.items():
            if other not in needs:
                raise UsageError(
                    f"{name!r} waits for {other!r}, which is no service", where="services"
                )
            if other == MAIN and condition == "completed":
                raise UsageError(f"{name!r} waits for the end of the sandbox", where="services")
    return needs


def start_order(needs: Mapping[str, Mapping[str, ServiceCondition]]) -> list[str]:
    """Return the names, each after all that it needs; what depends on `main` comes last.

    Raises:
        UsageError: Some wait for each other.
    """
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise UsageError(f"services wait for each other: {circle}", where="services") from None
    behind = {MAIN}
    for name in order:
        if behind & needs[name].keys():
            behind.add(name)
    behind.remove(MAIN)
    before = [name for name in order if name != MAIN and name not in behind]
    return [*before, MAIN, *(name for name in order if name in behind)]


_PATIENCE = 10
"""Restarts after which one that is always started again is taken for one that never runs."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One look at a service's container."""

    status: str
    exit_code: int
    health: str | None
    """`None` without a healthcheck."""
    restarts: int
    """How often the engine has started it again."""

    @classmethod
    def of(cls, container: Any) -> "ServiceState":  # noqa: ANN401 - the engine's JSON
        """Read what the engine's `inspect` says."""
        state = container["State"]
        known = cast("dict[str, str]", state.get("Health") or {})
        health = known.get("Status", "none")
        exit_code = int(state["ExitCode"])
        told = None if health == "none" else health
        return cls(str(state["Status"]), exit_code, told, int(container["RestartCount"]))

    @property
    def ended(self) -> bool:
        """Whether it no longer runs."""
        return self.status in {"exited", "dead"}

    def fulfils(self, condition: ServiceCondition) -> bool:
        """Whether it is as a dependent asks."""
        if condition == "healthy":
            return self.health == "healthy"
        well_ended = self.ended and self.exit_code == 0
        return well_ended or (condition == "started" and self.status == "running")

    def never_fulfils(self, condition: ServiceCondition) -> bool:
        """Whether it can no longer come to be so."""
        ill = condition == "healthy" and self.health in {None, "unhealthy"}
        return self.ended or ill or self.restarts >= _PATIENCE

    def __str__(self) -> str:
        """Return what is told of it after its name."""
        if self.ended or self.restarts >= _PATIENCE:
            return f"ended with exit code {self.exit_code}"
        return f"is {self.health or self.status}"
