"""A task whose boxes reach nobody, whatever it asks for."""

from typing import TypeVar

from benchflow_contracts import Task, TaskAgent, TaskEnvironment, TaskVerifier

_Networked = TypeVar("_Networked", TaskEnvironment, TaskVerifier)


def offline(task: Task) -> Task:
    """Return `task` with no network in the agent's box, in each grading box and in any step."""
    verifier = _alone_verifier(task.config.verifier)
    environment = _alone(task.config.environment)
    config = task.config.model_copy(update={"environment": environment, "verifier": verifier})
    config = config.model_copy(update={"agent": _alone_agent(config.agent)})
    steps = tuple(
        step.model_copy(
            update={"agent": _alone_agent(step.agent), "verifier": _alone_verifier(step.verifier)}
        )
        for step in task.steps
    )
    return task.model_copy(update={"config": config, "steps": steps})


def _alone_agent(agent: TaskAgent) -> TaskAgent:
    return agent.model_copy(update={"network": None, "allowed_hosts": ()})


def _alone(networked: _Networked) -> _Networked:
    return networked.model_copy(update={"network": "none", "allowed_hosts": ()})


def _alone_verifier(verifier: TaskVerifier) -> TaskVerifier:
    own = verifier.environment
    box = None if own is None else _alone(own)
    return _alone(verifier).model_copy(update={"environment": box})
