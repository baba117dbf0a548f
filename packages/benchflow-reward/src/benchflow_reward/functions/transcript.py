"""Rewards of what the agent asked and wrote on its way."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RewardEvent, RolloutNode, Step, VerifyResult

from benchflow_reward.matcher import search


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedUser:
    """1 if the agent asked its user a question, `wrong` if not; the reverse if `expected` is false.

    Action space, step granularity: it walks the whole path and names each asking
    step in an event. Only asks of kind `question` count, not permissions. With
    `match`, only questions count in whose text or options the pattern is found.
    """

    expected: bool = True
    match: str | None = None
    wrong: float = 0.0
    """The reward for the wrong behaviour; -1 makes not asking cost."""
    name: str = "asked_user"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Walk `node.path`. Raises `RewardError` for a bad or endless pattern."""
        del evidence  # the steps are in the node
        asking = [step for step in node.steps if step.ask and step.ask.kind == "question"]
        if self.match is not None:
            hits = await search(self.match, [_wording(s) for s in asking], ignore_case=True)
            asking = [step for step, hit in zip(asking, hits, strict=True) if hit]
        reward = 1.0 if bool(asking) is self.expected else self.wrong
        events = tuple(self._event(step) for step in asking)
        return VerifyResult(
            reward=reward,
            items={"questions": float(len(asking))},
            events=events,
            space="action",
            granularity="step",
            meta={"expected": self.expected},
        )

    def _event(self, step: Step) -> RewardEvent:
        return RewardEvent(
            source=self.name,
            value=1.0 if self.expected else self.wrong,
            space="action",
            granularity="step",
            step_id=step.id,
            tag="asked",
        )


def _wording(step: Step) -> str:
    questions = step.ask.questions if step.ask else ()
    labels = [option.label for question in questions for option in question.options]
    return "\n".join([*(question.text for question in questions), *labels])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMentions:
    """1 if `pattern` is in the agent's reasoning, else 0; the reverse if `expected` is false.

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
