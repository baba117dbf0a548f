"""The routes of policies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchflow_serve_client import PolicyStatus, PolicyUpdate
from litestar import get, put
from litestar.datastructures import State
from litestar.params import JSONBody

from .parameters import PathName
from .policies import Policies

if TYPE_CHECKING:
    from .core import RolloutService


@put("/v1/policies/{name:str}", tags=["policies"])
async def update_policy(name: PathName, data: JSONBody[PolicyUpdate], state: State) -> PolicyStatus:
    """Register a policy or its new weights, and say what running rollouts do.

    The same version with the same endpoint again has no effect, so a client may repeat a request
    whose answer was lost. Weights of running calls never change within a call.
    """
    return await _policies(state).update(name, data)


@get("/v1/policies/{name:str}", tags=["policies"])
async def show_policy(name: PathName, state: State) -> PolicyStatus:
    """Return a policy: its version, its running rollouts by version, and what was dropped."""
    return _policies(state).status(name)


@get("/v1/policies", tags=["policies"])
async def list_policies(state: State) -> Sequence[PolicyStatus]:
    """Return all policies by name."""
    return _policies(state).statuses()


def _policies(state: State) -> Policies:
    service: RolloutService = state["service"]
    return service.policies


POLICY_ROUTES = (update_policy, show_policy, list_policies)
