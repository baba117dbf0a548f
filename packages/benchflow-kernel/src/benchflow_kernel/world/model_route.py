"""The gateway's route of a world to the model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchflow_contracts import (
    MODEL_DOOR,
    BenchFlowError,
    CallBudget,
    Endpoint,
    KnowsReach,
    ModelCall,
    ModelRoute,
    SandboxImage,
    SupportsMessages,
    SupportsPublicAccess,
    UsageError,
)

from benchflow_kernel.resolve import Plan

MessageReader = Callable[[], Sequence[Mapping[str, Any]]]


async def open_route(
    plan: Plan, node: str, replay: Sequence[ModelCall], budget: CallBudget | None = None
) -> ModelRoute | None:
    """Open the gateway's route of `node` to the model, if there are both.

    `budget` is that of the branch. The limits of a token hold, too.
    """
    gateway, door = plan.planes.gateway, plan.spec.door(MODEL_DOOR)
    if gateway is None or door is None:
        return None
    if plan.model_path is not None:
        budget = _least(plan.config.model.access.budget, budget or CallBudget())
    return await gateway.open(
        plan.rollout_id, node, upstream=door.endpoint, replay=replay, budget=budget
    )


def complete_calls(route: ModelRoute, calls: Sequence[ModelCall]) -> tuple[ModelCall, ...]:
    """Return the calls with requests and responses, in the order in which they began."""
    wanted = {call.id for call in calls}
    return tuple(call for call in route.calls() if call.id in wanted)


def reader_of(route: ModelRoute | None) -> MessageReader | None:
    """Return what reads the conversation of a route, if the route can."""
    if route is None:
        return None
    return route.messages if isinstance(route, SupportsMessages) else None


def _least(one: CallBudget, other: CallBudget) -> CallBudget:
    """Return the budget that holds both of two budgets."""
    limits = {
        name: [limit for limit in (getattr(one, name), getattr(other, name)) if limit is not None]
        for name in CallBudget.model_fields
        if name != "earlier"
    }
    found = {name: min(given) for name, given in limits.items() if given}
    return CallBudget.model_validate({**found, "earlier": other.earlier})


async def endpoint_of(
    plan: Plan, route: ModelRoute | None, image: SandboxImage | None
) -> Endpoint | None:
    """Return the address of the model's door: that of `route`, or a new public one with a token.

    Raises:
        UsageError: The gateway cannot be reached from outside, or a live agent has another token.
    """
    if route is None or plan.model_path is None:
        return None if route is None else route.endpoint
    if image is not None and image.level == "live":
        raise UsageError(
            "an agent of a live checkpoint has the model's address of its earlier rollout",
            hint="use --model-access tunnel",
        )
    if not isinstance(route, SupportsPublicAccess):
        raise UsageError(
            "the gateway of this rollout has no address for other machines",
            hint="use --model-access tunnel",
        )
    return await route.publish(seconds=plan.token_limit)


def error_of(route: ModelRoute) -> BenchFlowError | None:
    """Return why the route ended the agent's work, or why no call of the work reached it."""
    if route.error is not None or not isinstance(route, KnowsReach):
        return route.error
    return route.unreached
