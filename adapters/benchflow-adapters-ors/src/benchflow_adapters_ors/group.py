"""Groups of rollouts that an ORS server scores by comparison."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchflow_contracts import RewardError, RolloutNode, Step, Task, VerifyResult
from benchflow_contracts.verdict import MAX_REWARD
from benchflow_env_outside.task_data import read_task_data

from .client import OrsSession
from .errors import OrsError
from .wire import GroupCandidate, GroupMessage, GroupScore
from .world import client_for, secrets_for, settings_of


class OrsGroupReward:
    """The `score_group` of the server of a task, as a `GroupReward`.

    The server gets the words of the users and of the agent in each leaf, in a new session of the
    task. Its scores come beside the rewards of the sessions, so the name is not `reward` unless
    you choose it.
    """

    def __init__(self, name: str = "group") -> None:
        self.name = name

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return one verdict for each leaf.

        Raises:
            RewardError: The environment does not score groups, or failed. No leaf has a score.
            TaskError: The task is not one of an ORS server.
        """
        settings = settings_of(task)
        spec: dict[str, Any] = read_task_data(task).task.get("task_spec") or {}
        candidates = [_candidate(leaf, task.instruction) for leaf in leaves]
        try:
            async with (
                client_for(settings.url) as client,
                OrsSession(
                    client,
                    settings.environment,
                    spec,
                    secrets=secrets_for(settings.url),
                    toolset=settings.toolset,
                ) as session,
            ):
                scores = await session.score_group(candidates)
        except OrsError as error:
            raise RewardError(f"the group has no scores: {error}", hint=error.hint) from error
        return [_verdict(score) for score in scores]


def _verdict(score: GroupScore) -> VerifyResult:
    if abs(score.reward) > MAX_REWARD:
        return VerifyResult.unscored(f"the score {score.reward} is out of range")
    return VerifyResult(reward=score.reward, meta={"metadata": score.metadata})


def _candidate(leaf: RolloutNode, instruction: str) -> GroupCandidate:
    messages = tuple(_messages(leaf.steps, instruction))
    return GroupCandidate(messages=messages, metadata={"leaf": leaf.id})


def _messages(steps: Sequence[Step], instruction: str) -> Iterator[GroupMessage]:
    for at, step in enumerate(steps):
        prompt = step.prompt or (instruction if at == 0 else "")
        for role, text in (("user", prompt), ("assistant", step.message)):
            if text:
                block = {"type": "text", "text": text}
                yield GroupMessage.model_validate({"role": role, "blocks": [block]})
