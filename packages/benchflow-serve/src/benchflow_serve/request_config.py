"""The configuration of one rollout: the server's, with the few values that a request may set."""

from collections.abc import Iterable
from typing import Any

from benchflow_contracts import PolicyEndpoint, UsageError
from benchflow_engine.config import RunConfig, table_faults
from benchflow_engine.flags import RunFlags, with_flags
from benchflow_serve_client import RolloutRequest

from .policies import configured_for
from .problems import RequestRefusedError


def configure(
    base: RunConfig,
    request: RolloutRequest,
    *,
    endpoint: PolicyEndpoint | None,
    agents: Iterable[str] = (),
) -> RunConfig:
    """Return the configuration of a request. `endpoint` is that of its calls, if it is known.

    A judge and a simulated user keep the model endpoint of the server, if it has one.

    Raises:
        RequestRefusedError: The agent is not allowed, or a value is wrong.
    """
    config = _with_agent(base, request.agent, agents)
    if endpoint is not None:
        config = configured_for(config, endpoint)
    sets_nothing = request.branch is None and request.seed is None and not request.sampling
    if endpoint is None and sets_nothing:
        return config  # The values of the server are valid.
    tables: dict[str, Any] = config.model_dump()
    if request.branch is not None:
        tables["branch"] = dict(request.branch)
    tables["model"]["sampling"] |= request.sampling
    if request.seed is not None:
        tables["seed"] = tables["model"]["seed"] = request.seed
    try:
        return with_flags(tables, RunFlags())
    except UsageError as error:
        faults = table_faults(tables)
        where = ".".join(faults[0][0]) if faults else "branch"
        message = f"{where}: {faults[0][1]}" if faults else str(error)
        raise RequestRefusedError(message, where=where) from None


def _with_agent(base: RunConfig, agent: str | None, allowed: Iterable[str]) -> RunConfig:
    if agent is None or agent == base.agent.label:
        return base
    names = [base.agent.label, *allowed]
    if agent not in names:
        raise RequestRefusedError(
            f"the service does not allow agent {agent!r}",
            hint=f"allowed: {', '.join(names)}; the operator adds one with --allow-agent",
            where="agent",
        )
    return base.with_agent(agent)


def check_server_config(config: RunConfig) -> None:
    """Refuse a configuration of the server that cannot serve models of clients.

    Raises:
        UsageError: The gateway is off.
    """
    if not config.model.gateway:
        raise UsageError(
            "the service needs the model gateway, which records the tokens",
            hint="leave model.gateway on",
        )
