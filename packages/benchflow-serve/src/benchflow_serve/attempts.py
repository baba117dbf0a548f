"""The next run of a rollout: its task, its configuration and its model."""

import asyncio
from pathlib import Path

from benchflow_contracts import BenchFlowError, Task, UsageError
from benchflow_kernel import load_task

from .entries import Entry
from .model_source import FixedModel, ModelUse
from .parts import ServiceParts
from .policies import PolicyUse, policy_endpoint
from .request_config import configure
from .runner import Attempt


class EndpointKeyLostError(BenchFlowError):
    """The server was restarted, and a key of a client is never on disk."""

    boundary = "usage"
    default_culprit = "operator"
    default_retryable = True
    default_hint = "submit the rollout again, or register the endpoint as a policy"


async def attempt_of(entry: Entry, use: ModelUse, parts: ServiceParts) -> Attempt:
    """Return the next run of a rollout.

    Raises:
        BenchFlowError: Its task was changed, or the key of its endpoint is lost.
    """
    if entry.lacks_key:
        raise EndpointKeyLostError("the restart of the server lost the key of the endpoint")
    settings, saved = parts.settings, entry.saved
    endpoint = use.first.endpoint if isinstance(use, PolicyUse) else None
    if isinstance(use, FixedModel) and use.endpoint is not None:
        endpoint = policy_endpoint(use.endpoint)
    task = entry.loaded_task
    if task is None:
        task = await asyncio.to_thread(task_of, entry, parts)
    config = configure(
        settings.config, entry.request, endpoint=endpoint, agents=settings.allow_agents
    )
    assert entry.switch is not None, "a rollout that runs has a switch"
    return Attempt(
        rollout=entry.id,
        number=len(saved.attempts),
        directory=saved.attempts[-1],
        task=task,
        config=config,
        model=use,
        switch=entry.switch,
        deadline_sec=settings.caps.deadline(entry.request),
        resumes=saved.resumes,
    )


def task_of(entry: Entry, parts: ServiceParts) -> Task:
    """Return the task of a rollout. Call this in a thread.

    Raises:
        BenchFlowError: It is gone, or was changed since the rollout was submitted.
    """
    if entry.loaded_task is not None:
        return entry.loaded_task
    place = entry.saved.inline_task
    task = parts.catalogue.find(entry.status.task) if place is None else load_task(Path(place))
    if task.digest != entry.status.task_digest:
        raise UsageError(f"task {task.id!r} was changed since the rollout was submitted")
    return task


def has_network(task: Task, *, offline: bool) -> bool:
    """Return whether a task's work or tests can reach more than their model."""
    if offline:
        return False
    config = task.config
    modes = {config.environment.network, config.agent.network, config.verifier.network}
    # A directory of our own format has no services.
    services = () if task.own_parts is None else task.own_parts.services
    return not modes <= {None, "none", "model-only"} or bool(services)
