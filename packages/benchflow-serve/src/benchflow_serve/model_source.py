"""Where the model calls of a rollout go: to the endpoint of its request, or of its policy."""

from dataclasses import dataclass, replace
from typing import Protocol

from benchflow_kernel import Planes
from benchflow_serve_client import ModelEndpoint

from .policies import DirectedGateway, policy_endpoint


class ModelUse(Protocol):
    """The model of one rollout, from its place in the queue to its end."""

    def begin(self) -> None:
        """Start the rollout."""
        ...

    def cancel_begin(self) -> None:
        """Return to the place in the queue: the start could not be recorded."""
        ...

    def prepare(self, planes: Planes) -> Planes:
        """Return the planes whose gateway sends calls to the model."""
        ...

    def close(self) -> None:
        """End the use. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FixedModel:
    """The endpoint of a request, or without one that of the server's configuration."""

    endpoint: ModelEndpoint | None = None

    def begin(self) -> None:
        """Do nothing: an endpoint does not change."""

    def cancel_begin(self) -> None:
        """Do nothing."""

    def prepare(self, planes: Planes) -> Planes:
        """Send the calls to the endpoint."""
        if self.endpoint is None or planes.gateway is None:
            return planes
        endpoint = policy_endpoint(self.endpoint)
        return replace(planes, gateway=DirectedGateway(planes.gateway, lambda: endpoint))

    def close(self) -> None:
        """Do nothing."""
