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
    """Return the conditions that each service, and `main`, waits for.

    Raises:
        UsageError: Two services have the same name, a needed service is missing, or a service uses
            the network of the sandbox itself, which another container may replace.
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
                f"service {service.name!r} cannot use the sandbox's own network",
                where="services",
            )
    for name, conditions in needs.items():
        for other, condition in conditions.items():
            if other not in needs:
                raise UsageError(
                    f"{name!r} waits for {other!r}, which is not a service", where="services"
                )
            if other == MAIN and condition == "completed":
                raise UsageError(f"{name!r} waits for the end of the sandbox", where="services")
    return needs


def start_order(needs: Mapping[str, Mapping[str, ServiceCondition]]) -> list[str]:
    """Return the names in the order of their needs. Services that need `main` come last.

    Raises:
        UsageError: Services wait for each other.
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


_MAX_RESTARTS = 10
"""Number of restarts after which a service counts as failed."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service's container at one moment."""

    status: str
    exit_code: int
    health: str | None
    """`None` without a healthcheck."""
    restarts: int
    """The number of restarts by the engine."""

    @classmethod
    def of(cls, container: Any) -> "ServiceState":  # noqa: ANN401 - the engine's JSON
        """Read the engine's inspect data."""
        state = container["State"]
        known = cast("dict[str, str]", state.get("Health") or {})
        health = known.get("Status", "none")
        exit_code = int(state["ExitCode"])
        known_health = None if health == "none" else health
        return cls(str(state["Status"]), exit_code, known_health, int(container["RestartCount"]))

    @property
    def ended(self) -> bool:
        """Whether the container has ended."""
        return self.status in {"exited", "dead"}

    def fulfils(self, condition: ServiceCondition) -> bool:
        """Return whether the state meets a condition."""
        if condition == "healthy":
            return self.health == "healthy"
        has_succeeded = self.ended and self.exit_code == 0
        return has_succeeded or (condition == "started" and self.status == "running")

    def never_fulfils(self, condition: ServiceCondition) -> bool:
        """Return whether the state can no longer meet a condition."""
        is_unhealthy = condition == "healthy" and self.health in {None, "unhealthy"}
        return self.ended or is_unhealthy or self.restarts >= _MAX_RESTARTS

    def __str__(self) -> str:
        """Return the text that follows the service's name in an error."""
        if self.ended or self.restarts >= _MAX_RESTARTS:
            return f"ended with exit code {self.exit_code}"
        return f"is {self.health or self.status}"
