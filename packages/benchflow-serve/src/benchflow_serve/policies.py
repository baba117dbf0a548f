"""The policies of the service: the weights that answer the model calls of its rollouts."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchflow_contracts import (
    BenchFlowError,
    CallBudget,
    Endpoint,
    ModelCall,
    ModelGateway,
    ModelRoute,
    PolicyEndpoint,
    UsageError,
)
from benchflow_contracts.gateway import EndpointProbe
from benchflow_engine.config import RunConfig
from benchflow_engine.upstream_probe import settle_upstream
from benchflow_kernel import Planes
from benchflow_serve_client import InFlight, ModelEndpoint, PolicyStatus, PolicyUpdate

from .problems import ConflictError, NotFoundError, RequestRefusedError

PolicyOrder = Literal["park", "drop"]


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy."""

    number: int
    """The number of the update that registered it, from 1."""
    endpoint: PolicyEndpoint
    probe: EndpointProbe | None = None
    """The tokens of the endpoint, if it was probed."""

    @property
    def version(self) -> str:
        """The trainer's name of the version."""
        return self.endpoint.policy_version or ""


class PolicyUse:
    """The use of a policy by one rollout, from its place in the queue to its end."""

    def __init__(
        self, policy: "Policy", rollout: str, on_order: Callable[[PolicyOrder], None], pinned: bool
    ) -> None:
        self.rollout = rollout
        self.weights = policy.newest
        """The weights of later model calls."""
        self.first = policy.newest
        """The weights at the start of the rollout; before it, those of its place in the queue."""
        self.is_pinned = pinned
        self.is_running = False
        self.on_order = on_order
        self.on_swap: Callable[[str], None] = lambda _: None
        """Called with the new version when later calls go to it."""
        self._policy = policy
        self._routes: list[ModelRoute] = []

    def begin(self) -> None:
        """Start the rollout: with the newest weights, or with those that it is pinned to."""
        if not self.is_pinned:
            self.weights = self._policy.newest
        self.first = self.weights
        self.is_running = True

    def cancel_begin(self) -> None:
        """Return to the place in the queue: the start could not be recorded."""
        self.is_running = False

    def prepare(self, planes: Planes) -> Planes:
        """Return the planes of the rollout, with a gateway that calls these weights.

        Raises:
            UsageError: The rollout has no gateway.
        """
        if planes.gateway is None:
            raise UsageError(
                "a rollout with a policy needs the model gateway", hint="set model.gateway = true"
            )
        directed = DirectedGateway(planes.gateway, lambda: self.weights.endpoint, self.add)
        return replace(planes, gateway=directed)

    async def swap(self, weights: Weights) -> None:
        """Send the next model call of each node to `weights`. A call in flight ends as it began."""
        self.weights = weights
        if not self.is_running:
            self.first = weights
            return
        for route in list(self._routes):
            await route.swap(weights.endpoint)
        self.on_swap(weights.version)

    async def add(self, route: ModelRoute, opened_to: Endpoint) -> None:
        """Include a new route in later swaps."""
        self._routes.append(route)
        if self.weights.endpoint is not opened_to:
            await route.swap(self.weights.endpoint)

    def close(self) -> None:
        """End the use. Idempotent."""
        self.is_running = False
        self._routes.clear()
        self._policy.uses.discard(self)


class Policy:
    """A registered policy and the rollouts that use it."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name = name
        self.newest = weights
        self.uses: set[PolicyUse] = set()
        self.lock = asyncio.Lock()
        self._max_staleness: int | None = None
        self._dropped = Counter[str]()
        self._swapped = 0
        self._parked: list[str] = []

    async def update(
        self, update: PolicyUpdate, endpoint: PolicyEndpoint, probe: EndpointProbe | None
    ) -> None:
        """Register new weights, and apply `in_flight` to the rollouts of the older ones."""
        self._check(update.in_flight, endpoint)
        self.newest = Weights(self.newest.number + 1, endpoint, probe)
        self._max_staleness = update.max_staleness
        self._swapped, self._parked = 0, []
        for use in self._by_name(use for use in self.uses if use.is_running or use.is_pinned):
            if self._is_stale(use):
                self._drop(use)
            else:
                await self._apply(update.in_flight, use)

    def status(self) -> PolicyStatus:
        """Return what clients see."""
        endpoint, probe = self.newest.endpoint, self.newest.probe
        running = (use for use in self.uses if use.is_running)
        return PolicyStatus(
            name=self.name,
            version=self.newest.version,
            updates=self.newest.number,
            endpoint=ModelEndpoint(
                url=endpoint.url, model=endpoint.model or "", upstream=endpoint.protocol
            ),
            tokens=None if probe is None else probe.level,
            probe_error=None if probe is None else probe.error,
            max_staleness=self._max_staleness,
            in_flight=Counter(use.weights.version for use in running),
            dropped=dict(self._dropped),
            swapped=self._swapped,
            parked=self._parked,
        )

    async def _apply(self, in_flight: InFlight, use: PolicyUse) -> None:
        if in_flight == "swap" or (in_flight == "park" and not use.is_running):
            await use.swap(self.newest)
            self._swapped += use.is_running
        elif in_flight == "park":
            self._parked.append(use.rollout)
            use.on_order("park")
        elif in_flight == "drop":
            self._drop(use)

    def _drop(self, use: PolicyUse) -> None:
        self._dropped[use.first.version] += 1
        use.close()
        use.on_order("drop")

    def _is_stale(self, use: PolicyUse) -> bool:
        limit = self._max_staleness
        return limit is not None and self.newest.number - use.first.number > limit

    def _check(self, in_flight: InFlight, endpoint: PolicyEndpoint) -> None:
        old = self.newest.endpoint
        if endpoint.protocol != old.protocol:
            raise RequestRefusedError(
                f"policy {self.name!r} speaks {old.protocol!r}, and the update"
                f" {endpoint.protocol!r}",
                hint="register the endpoint as another policy",
            )
        is_same_server = (endpoint.url, endpoint.model) == (old.url, old.model)
        if in_flight == "finish" and is_same_server and any(use.is_running for use in self.uses):
            raise RequestRefusedError(
                f"running rollouts of policy {self.name!r} cannot keep the old weights: the update"
                " has the same URL and model",
                hint="use in_flight swap, park or drop, or serve the new weights as another model",
            )

    @staticmethod
    def _by_name(uses: Iterator[PolicyUse]) -> list[PolicyUse]:
        return sorted(uses, key=lambda use: use.rollout)


class Policies:
    """The registered policies, in memory: a trainer registers its policy again after a restart."""

    def __init__(self, *, require_tokens: bool = False) -> None:
        """Prepare the registry. `require_tokens` refuses endpoints that return no tokens."""
        self._require_tokens = require_tokens
        self._policies: dict[str, Policy] = {}
        self._added = asyncio.Event()

    def __contains__(self, name: str) -> bool:
        return name in self._policies

    def statuses(self) -> Sequence[PolicyStatus]:
        """Return every policy, by name."""
        return [self._policies[name].status() for name in sorted(self._policies)]

    def status(self, name: str) -> PolicyStatus:
        """Return one policy.

        Raises:
            NotFoundError: It is not registered.
        """
        return self._find(name).status()

    async def update(self, name: str, update: PolicyUpdate) -> PolicyStatus:
        """Register a policy, or its new weights. The same update again has no effect.

        Raises:
            RequestRefusedError: The update does not fit to the policy.
        """
        settled, probe = await self.settle(update.endpoint)
        endpoint = policy_endpoint(settled, update.version)
        policy = self._policies.get(name)
        if policy is None:
            policy = self._policies[name] = Policy(name, Weights(1, endpoint, probe))
            self._added.set()
            self._added = asyncio.Event()
            return policy.status()
        async with policy.lock:
            newest = policy.newest.endpoint
            if newest.policy_version != update.version:
                await policy.update(update, endpoint, probe)
            elif newest != endpoint:
                raise ConflictError(
                    f"version {update.version!r} of policy {name!r} has another endpoint",
                    hint="give the new weights another version",
                )
            return policy.status()

    async def settle(self, endpoint: ModelEndpoint) -> tuple[ModelEndpoint, EndpointProbe | None]:
        """Return an endpoint with its protocol instead of `auto`, and its probe if there was one.

        Raises:
            RequestRefusedError: The service requires tokens, and the endpoint returns none.
        """
        try:
            kind, probe = await settle_upstream(
                endpoint.upstream,
                Endpoint(url=endpoint.url, headers=_headers(endpoint)),
                endpoint.model,
                require_tokens=self._require_tokens,
            )
        except BenchFlowError as error:
            raise RequestRefusedError(str(error), hint=error.hint, where="endpoint") from None
        return endpoint.model_copy(update={"upstream": kind}), probe

    async def wait_for(self, name: str) -> None:
        """Wait until a policy is registered."""
        while name not in self._policies:
            await self._added.wait()

    def newest(self, name: str) -> PolicyEndpoint:
        """Return the newest weights of a policy.

        Raises:
            NotFoundError: It is not registered.
        """
        return self._find(name).newest.endpoint

    def reserve(
        self,
        name: str,
        rollout: str,
        on_order: Callable[[PolicyOrder], None],
        *,
        pinned: bool = False,
    ) -> PolicyUse:
        """Return the use of a policy by a rollout that is in the queue. The caller closes it.

        Args:
            name: The policy.
            rollout: The id of the rollout.
            on_order: Is called when an update parks or drops the rollout. It must not block.
            pinned: The rollout starts with the weights of now, as the other members of its group.

        Raises:
            NotFoundError: The policy is not registered.
        """
        policy = self._find(name)
        use = PolicyUse(policy, rollout, on_order, pinned)
        policy.uses.add(use)
        return use

    def _find(self, name: str) -> Policy:
        if name not in self._policies:
            raise NotFoundError(
                f"policy {name!r} is not registered", hint=f"PUT /v1/policies/{name} registers it"
            )
        return self._policies[name]


class DirectedGateway:
    """A gateway whose routes go to the endpoint of the moment, whatever the configuration says."""

    def __init__(
        self,
        gateway: ModelGateway,
        endpoint: Callable[[], Endpoint],
        on_open: Callable[[ModelRoute, Endpoint], Awaitable[None]] | None = None,
    ) -> None:
        """Call `on_open` with each new route and the endpoint that it was opened to."""
        self._gateway = gateway
        self._endpoint = endpoint
        self._on_open = on_open

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> ModelRoute:
        """Create the route of a node; see `ModelGateway`. `upstream` is not used."""
        del upstream
        endpoint = self._endpoint()
        route = await self._gateway.open(
            rollout_id, node, upstream=endpoint, replay=replay, budget=budget
        )
        if self._on_open is not None:
            await self._on_open(route, endpoint)
        return route

    async def aclose(self) -> None:
        """Close every route. Idempotent."""
        await self._gateway.aclose()


def policy_endpoint(endpoint: ModelEndpoint, version: str | None = None) -> PolicyEndpoint:
    """Return an endpoint for the gateway, with the credential. Its protocol is settled."""
    assert endpoint.upstream != "auto"
    return PolicyEndpoint(
        url=endpoint.url,
        headers=_headers(endpoint),
        model=endpoint.model,
        protocol=endpoint.upstream,
        policy_version=version,
    )


def _headers(endpoint: ModelEndpoint) -> dict[str, str]:
    key = None if endpoint.api_key is None else endpoint.api_key.get_secret_value()
    return {} if key is None else {"Authorization": f"Bearer {key}", "x-api-key": key}


def configured_for(config: RunConfig, endpoint: PolicyEndpoint) -> RunConfig:
    """Return the configuration of a rollout whose agent calls `endpoint`.

    A model endpoint of `config` stays that of its simulated user and its judge. Without one, the
    key of the operator does not go to `endpoint`.
    """
    # The endpoint was probed when it was registered, and base_url may be another one.
    changes: dict[str, object] = {"upstream": endpoint.protocol, "require_tokens": False}
    if config.model.base_url is None:
        changes |= {"base_url": endpoint.url, "api_key_env": ""}
    model = config.model.model_copy(update=changes)
    agent = config.agent.model_copy(update={"model": config.agent.model or endpoint.model})
    return config.model_copy(update={"model": model, "agent": agent})
