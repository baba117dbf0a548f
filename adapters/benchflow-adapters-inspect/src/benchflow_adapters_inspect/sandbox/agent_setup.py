"""The agent that a sandbox is prepared for: its programs, and its way to a model."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, cast

from benchflow_contracts import (
    Agent,
    AgentFactory,
    Door,
    Endpoint,
    ModelRoute,
    Role,
    SandboxSpec,
)
from benchflow_contracts.scratch import scratch_directory
from benchflow_kernel import Registry

INSPECT_MODEL: Final = "inspect"
"""The model that an agent asks for, if the configuration does not name one."""

_NOWHERE = Endpoint(url="http://127.0.0.1:9")
"""The upstream until the solver of the sample runs."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentSetup:
    """An agent and its route to the model, which records every call."""

    agent: Agent
    role: Role
    route: ModelRoute
    stack: AsyncExitStack

    async def aclose(self) -> None:
        """Close the route and delete its record. Idempotent."""
        await self.stack.aclose()


async def prepare_agent(
    name: str, model: str | None, spec: SandboxSpec, rollout: str
) -> tuple[AgentSetup, SandboxSpec]:
    """Return the agent's setup, and the spec with the programs and the door that it needs.

    Raises:
        UnknownProviderError: The agent is not installed.
        AgentError: The agent cannot be made available on this machine.
    """
    from benchflow_gateway import HttpGateway  # noqa: PLC0415 - only for a sandbox with an agent

    agent = cast("AgentFactory", Registry().resolve("benchflow.agents", name))()
    role = Role(agent=name, model=model or INSPECT_MODEL)
    needs = await agent.needs(role)
    async with AsyncExitStack() as stack:
        record = stack.enter_context(scratch_directory("inspect"))
        gateway = await stack.enter_async_context(HttpGateway(record, kind="openai"))
        route = await gateway.open(rollout, "root", upstream=_NOWHERE)
        setup = AgentSetup(agent, role, route, stack.pop_all())
    door = Door.to(route.endpoint)
    doors = (*(each for each in needs.doors if each.name != door.name), door)
    network = "model-only" if spec.network == "none" else spec.network
    added = {
        "bundles": needs.bundles,
        "env": {**needs.env, **spec.env},
        "doors": doors,
        "network": network,
    }
    return setup, spec.model_copy(update=added)
