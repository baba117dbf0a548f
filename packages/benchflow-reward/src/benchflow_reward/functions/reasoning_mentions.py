"""ReasoningMentions: a pattern in the recorded reasoning."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RewardEvent, RolloutNode, VerifyResult

from benchflow_reward.matcher import search


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMentions:
    """1 when `pattern` is found in the agent's reasoning exactly if `expected`, else 0.

    Reasoning space, step granularity: each matching step is an event. This is a
    text search and no more: it cannot tell sound reasoning from its wording, the
    recorded reasoning need not be what drove the model, and a policy that is
    trained on it learns to write (or hide) the words. Use it to monitor.
    """

    pattern: str
    expected: bool = True
    ignore_case: bool = True
    name: str = "reasoning"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Walk `node.path`. Unscored when no step has any recorded reasoning.

        Raises:
            RewardError: The pattern is malformed or endless.
        """
        del evidence  # the steps are in the node
        steps = [step for step in node.steps if step.reasoning.strip()]
        if not steps:
            return VerifyResult.unscored("the agent recorded no reasoning")
        texts = [step.reasoning for step in steps]
        hits = await search(self.pattern, texts, ignore_case=self.ignore_case)
        events = tuple(
            RewardEvent(
                source=self.name,
                value=1.0 if self.expected else 0.0,
                space="reasoning",
                granularity="step",
                step_id=step.id,
                tag="mentioned",
            )
            for step, hit in zip(steps, hits, strict=True)
            if hit
        )
        return VerifyResult(
            reward=1.0 if bool(events) is self.expected else 0.0,
            items={"steps_with_reasoning": float(len(steps)), "matches": float(len(events))},
            events=events,
            space="reasoning",
            granularity="step",
        )
