"""Where the model calls of a rollout go: to the endpoint of its request, or of its policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from benchflow_contracts import CallBudget, Endpoint, ModelCall, ModelGateway, ModelRoute
from benchflow_kernel import Planes
from benchflow_serve_client import ModelEndpoint

from .policies import policy_endpoint


class ModelUse(Protocol):
    """The model of one rollout, from its place in the queue to its end."""

    def begin(self) -> None:
        """Start the rollout."""
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

    def prepare(self, planes: Planes) -> Planes:
        """Send the calls to the endpoint."""
        if self.endpoint is None or planes.gateway is None:
            return planes
        return replace(
            planes, gateway=DirectedGateway(planes.gateway, policy_endpoint(self.endpoint))
        )

    def close(self) -> None:
        """Do nothing."""


class DirectedGateway:
    """A gateway whose routes go to one upstream, whatever the configuration says."""

    def __init__(self, gateway: ModelGateway, upstream: Endpoint) -> None:
        self._gateway = gateway
        self._upstream = upstream

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> ModelRoute:
        """Open a route to the upstream of this gateway; see `ModelGateway`."""
        del upstream
        return await self._gateway.open(
            rollout_id, node, upstream=self._upstream, replay=replay, budget=budget
        )

    async def aclose(self) -> None:
        """Close every route."""
        await self._gateway.aclose()
