"""How a service fares, as the engine tells it."""

from dataclasses import dataclass
from typing import Any, cast

from benchflow_contracts.container import ServiceCondition

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
