"""The verifier type `inspect`: the scorers of an Inspect task score each leaf."""

from collections.abc import Sequence
from typing import Literal

from benchflow_contracts import (
    Endpoint,
    Evidence,
    Reward,
    RewardError,
    RolloutNode,
    Task,
    TaskError,
    VerifyResult,
)

from .sample_folder import FORMAT, read_sample


class InspectReward:
    """Runs the scorers of the task on the state of a leaf, in its sandbox.

    The reward is the value of the first scorer; the items have all scores. A scorer that fails,
    or that gives no number, leaves the leaf without a reward.
    """

    name = "reward"

    def __init__(self, judge: Endpoint | None = None, judge_model: str | None = None) -> None:
        self._judge = judge
        self._judge_model = judge_model

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Score a leaf; see `Reward.score`.

        Raises:
            EvidenceMissingError: The evidence does not have the task.
            RewardError: A scorer failed, the task cannot be loaded, or Inspect is missing.
        """
        task = evidence.require_task(self.name)
        try:
            from .scoring import score_leaf  # noqa: PLC0415 - of the extra
        except ModuleNotFoundError as error:
            raise RewardError(
                f"the scorers need Inspect's package: {error}",
                hint="pip install 'benchflow-adapters-inspect[inspect]'",
            ) from error
        try:
            sample = read_sample(task.path)
            return await score_leaf(
                sample, node, evidence, judge=self._judge, judge_model=self._judge_model
            )
        except TaskError as error:
            raise RewardError(str(error), hint=error.hint) from error


def inspect_rewards(
    task: Task,
    *,
    isolation: Literal["hermetic", "twin", "shared"] | None = None,  # noqa: ARG001
    judge: Endpoint | None = None,
    judge_model: str | None = None,
    protocol: object = None,  # noqa: ARG001 - the signature of the group
) -> Sequence[Reward]:
    """Return the reward of a task of Inspect.

    Its scorers run on this machine, and read the agent's own sandbox: `isolation` has no effect.

    Raises:
        TaskError: The task is not of the format `inspect`.
    """
    if task.format != FORMAT:
        raise TaskError(
            f"task {task.id!r} has the format {task.format!r}",
            hint="the verifier type `inspect` is for tasks of Inspect",
        )
    return [InspectReward(judge, judge_model)]
