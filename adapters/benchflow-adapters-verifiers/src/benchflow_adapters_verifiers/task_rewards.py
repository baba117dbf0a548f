"""The reward functions of a task of verifiers, as a reward over a trajectory that has ended.

They need no sandbox and no live episode: an imported trace, or a leaf of a rollout, is enough.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_contracts import (
    EnvironmentError_,
    Evidence,
    EvidenceMissingError,
    Reward,
    RolloutNode,
    Task,
    TaskError,
    VerifyResult,
)
from benchflow_contracts.verdict import MAX_REWARD
from benchflow_env_outside.task_data import read_task_data
from benchflow_export import steps_to_messages
from benchflow_export.graph import v1_message

from .host_process import as_object, host_process
from .imported import TASK_HASH
from .world import environment_of

PREFIX: Final = "mcp__world__"
"""What an agent writes before the name of a tool of the world."""


class TaskRewards:
    """The `@reward` methods and judges of a task of verifiers 0.4, as a `Reward`.

    Verifiers runs them in the operator's Python, over a trace with the messages of the leaf. The
    reward is their weighted sum, as in verifiers; functions and metrics are named parts.

    `ident` and `arguments` name the environment for evidence without a task: the trace must then
    have been imported, and the task is found in the taskset by the hash that the trace names.
    """

    needs_processes = False

    def __init__(
        self,
        ident: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str = "reward",
    ) -> None:
        self.name = name
        self._ident, self._arguments = ident, dict(arguments or {})

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Return the verdict of verifiers about the messages of a leaf.

        A trace of another task than that of the evidence is unscored, and so is a leaf whose reward
        functions fail.

        Raises:
            EvidenceMissingError: The rewards need a sandbox, the state of the live episode, or
                another part that an ended trace does not have. The message names it.
            UsageError: The operator has not named a Python with verifiers.
        """
        ident, arguments, data = self._ident, self._arguments, None
        instruction = None
        if evidence.task is not None:
            ident, arguments = environment_of(evidence.task)
            data = read_task_data(evidence.task).task.get("data")
            instruction = evidence.task.instruction
        digest = _task_hash(node)
        if ident is None or (data is None and digest is None):
            raise EvidenceMissingError(
                f"{self.name!r} needs a task of verifiers, and neither the evidence nor the trace"
                " names one",
                hint="give the task, or import a trace of verifiers 0.4",
            )
        messages = list(_messages(node, instruction))
        try:
            host = await asyncio.to_thread(host_process, ident, arguments)
            found = await host.ask("score", data=data, digest=digest, messages=messages)
        except TaskError as error:
            raise EvidenceMissingError(
                f"{error} ({error.where})", hint="run the task: verifiers then scores its episode"
            ) from error
        except EnvironmentError_ as error:
            return VerifyResult.unscored(f"{error}", retryable=error.retryable)
        return verdict_of(as_object(found))


def make_rewards(task: Task, **_: object) -> list[Reward]:
    """Return the rewards of a task of verifiers: the entry point `verifiers`.

    `--reward-import-path benchflow_adapters_verifiers.task_rewards:make_rewards` scores a task of
    `verifiers://ENV` by them.

    Raises:
        TaskError: The task does not name an environment of verifiers.
    """
    environment_of(task)
    return [TaskRewards()]


def _task_hash(node: RolloutNode) -> str | None:
    """Return the hash of the task of an imported trace; `None` for another leaf."""
    for result in node.results.values():
        found = result.meta.get(TASK_HASH)
        if isinstance(found, str) and found:
            return found
    return None


def _messages(node: RolloutNode, instruction: str | None) -> Iterator[dict[str, Any]]:
    # `Evidence.messages` is empty for an imported trace, and has the agent's own system prompt.
    for message in steps_to_messages(node.steps, instruction=instruction):
        found = v1_message(message)
        for call in found.get("tool_calls", ()):
            call["name"] = call["name"].removeprefix(PREFIX)
        yield found


def verdict_of(found: Mapping[str, Any]) -> VerifyResult:
    """Return the verdict that a host sent."""
    reward = found["reward"]
    if not isinstance(reward, int | float) or not abs(reward) <= MAX_REWARD:
        return VerifyResult.unscored(f"the reward {reward!r:.100} is not a number in range")
    parts = {
        str(name): float(value)
        for name, value in as_object(found["parts"]).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return VerifyResult(reward=float(reward), items=parts, meta={"scored_by": "verifiers"})


__all__ = ["TaskRewards", "make_rewards"]
