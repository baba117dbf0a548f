"""AskedUser: did the agent ask when it should have?"""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RewardEvent, RolloutNode, Step, VerifyResult

from benchflow_reward.matcher import search


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedUser:
    """1 when the agent put a question to its user exactly if `expected`, else `wrong`.

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
