"""What the config changes in a task: its network, expected changes and reward files."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchflow_contracts import (
    RewardFiles,
    Task,
    TaskAgent,
    TaskEnvironment,
    TaskVerifier,
)

_Networked = TypeVar("_Networked", TaskEnvironment, TaskVerifier)


def map_verifiers(task: Task, change: Callable[[TaskVerifier, str], TaskVerifier]) -> Task:
    """Return `task` with each verifier replaced by the result of `change`.

    `change` gets a verifier and its key: the task's own, and that of each step.
    """
    config = task.config.model_copy(update={"verifier": change(task.config.verifier, "verifier")})
    steps = tuple(
        step.model_copy(update={"verifier": change(step.verifier, f"steps.{i}.verifier")})
        for i, step in enumerate(task.steps)
    )
    return task.model_copy(update={"config": config, "steps": steps})


def without_network(task: Task) -> Task:
    """Return `task` with no network in the agent's sandbox, in each grading sandbox and step."""
    task = map_verifiers(task, _offline_verifier)
    update = {
        "environment": _offline(task.config.environment),
        "agent": _offline_agent(task.config.agent),
    }
    config = task.config.model_copy(update=update)
    steps = tuple(
        step.model_copy(update={"agent": _offline_agent(step.agent)}) for step in task.steps
    )
    return task.model_copy(update={"config": config, "steps": steps})


def with_expected_changes(task: Task, changes: Sequence[str]) -> Task:
    """Return `task` with `changes` added to those that each verifier expects."""

    def add(verifier: TaskVerifier, _where: str) -> TaskVerifier:
        expected = (*verifier.expects_changes, *changes)
        return verifier.model_copy(update={"expects_changes": expected})

    return map_verifiers(task, add)


def with_reward_files(task: Task, reward_files: RewardFiles) -> Task:
    """Return `task` with `reward_files` set in each verifier."""

    def replace(verifier: TaskVerifier, _where: str) -> TaskVerifier:
        return verifier.model_copy(update={"reward_files": reward_files})

    return map_verifiers(task, replace)


def _offline_agent(agent: TaskAgent) -> TaskAgent:
    return agent.model_copy(update={"network": None, "allowed_hosts": ()})


def _offline(networked: _Networked) -> _Networked:
    return networked.model_copy(update={"network": "none", "allowed_hosts": ()})


def _offline_verifier(verifier: TaskVerifier, _where: str) -> TaskVerifier:
    own = verifier.environment
    environment = None if own is None else _offline(own)
    return _offline(verifier).model_copy(update={"environment": environment})
