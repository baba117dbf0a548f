"""A task whose boxes reach nobody, whatever it asks for."""

from typing import TypeVar

from benchflow_contracts import Task, TaskAgent, TaskEnvironment, TaskVerifier

from .verifiers import with_verifiers

_Networked = TypeVar("_Networked", TaskEnvironment, TaskVerifier)


def offline(task: Task) -> Task:
    """Return `task` with no network in the agent's box, in each grading box and in any step."""
    task = with_verifiers(task, _alone_verifier)
    update = {
        "environment": _alone(task.config.environment),
        "agent": _alone_agent(task.config.agent),
    }
    config = task.config.model_copy(update=update)
    steps = tuple(
        step.model_copy(update={"agent": _alone_agent(step.agent)}) for step in task.steps
    )
    return task.model_copy(update={"config": config, "steps": steps})


def _alone_agent(agent: TaskAgent) -> TaskAgent:
    return agent.model_copy(update={"network": None, "allowed_hosts": ()})


def _alone(networked: _Networked) -> _Networked:
    return networked.model_copy(update={"network": "none", "allowed_hosts": ()})


def _alone_verifier(verifier: TaskVerifier, _where: str) -> TaskVerifier:
    own = verifier.environment
    box = None if own is None else _alone(own)
    return _alone(verifier).model_copy(update={"environment": box})
