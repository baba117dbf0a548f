"""Rewards of verifiers 0.3.1 over a group of rollouts."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from benchflow_contracts import (
    EnvironmentError_,
    RewardError,
    RolloutNode,
    Task,
    TaskError,
    VerifyResult,
)
from benchflow_env_outside.task_data import read_task_data
from benchflow_export import steps_to_messages

from .host_process import as_object, host_process
from .task_rewards import PREFIX, verdict_of
from .world import environment_of


class VerifiersGroupReward:
    """The rubric of an environment whose functions score a group, as a `GroupReward`.

    The rubric gets a state of each leaf with its messages, the row of the dataset, and one turn for
    each answer. A function that needs more of a live episode leaves the group unscored. The
    rollouts have no rewards of their own.
    """

    def __init__(self, name: str = "reward") -> None:
        self.name = name

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return one verdict for each leaf.

        Raises:
            RewardError: The rubric does not score groups, or failed. No leaf has a score.
            TaskError: The task is not one of an environment of verifiers.
        """
        ident, arguments = environment_of(task)
        data = read_task_data(task).task.get("data")
        candidates = [list(completion_of(leaf)) for leaf in leaves]
        try:
            host = await asyncio.to_thread(host_process, ident, arguments)
            found: object = await host.ask("score_group", data=data, candidates=candidates)
        except (EnvironmentError_, TaskError) as error:
            raise RewardError(
                f"the group has no scores: {error}", hint=error.hint, retryable=error.retryable
            ) from error
        verdicts: list[Any] = found if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]
        return [verdict_of(as_object(each)) for each in verdicts]


def completion_of(leaf: RolloutNode) -> Iterator[dict[str, Any]]:
    """Yield the messages of a leaf after its prompt, with the names of the world's tools."""
    messages = steps_to_messages(leaf.steps)
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    for message in messages[first:]:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            function["name"] = function["name"].removeprefix(PREFIX)
        yield {key: value for key, value in message.items() if key != "reasoning_content"}


__all__ = ["VerifiersGroupReward"]
