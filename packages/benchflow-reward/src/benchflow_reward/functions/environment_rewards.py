"""EnvironmentRewards: the return is what a world outside the sandbox gave."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from benchflow_contracts import (
    NO_REWARDS,
    Evidence,
    EvidenceMissingError,
    RareModel,
    RewardError,
    RewardEvent,
    RolloutNode,
    VerifyResult,
    outside_world,
)

Rule = Literal["sum", "last", "max", "none"]
_RULES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": sum,
    "last": lambda values: values[-1],
    "max": max,
}


class EnvironmentOptions(RareModel):
    """`[verifier.options]` of `type = "environment"`."""

    rule: Rule = "sum"
    """`none`: the world rewards groups of episodes alone, so one episode has nothing to reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRewards:
    """The return of an episode: the sum, the last or the largest of the rewards that a world gave.

    The world may first add its final rewards, since the agent has ended. Events with a tag are
    named parts: they are in `items`, by their last value, and the rule does not count them. The
    result is unscored if the world gave no reward or failed, or if the return is outside
    `reward_range`. With the rule `none` it has the `error_type` `NO_REWARDS`, and a `GroupReward`
    sees it.
    """

    rule: Rule
    reward_range: tuple[float, float]
    name: str = "reward"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Return the verdict.

        Raises:
            EvidenceMissingError: The rollout has no world outside the sandbox.
            EnvironmentError_: The world failed.
            RewardError: The world gave no reward, or one that cannot be counted.
        """
        live = evidence.require_world(self.name)
        world = outside_world(live.environment)
        if world is None:
            raise EvidenceMissingError(
                f"{self.name!r} needs an environment outside the sandbox, which gives rewards",
                hint="name its provider in [environment], or grade with another [verifier] type",
            )
        if live.continues:
            raise RewardError(f"{self.name!r} scores an episode at its end, not between its steps")
        await world.finish(node.steps)
        if self.rule == "none":
            return VerifyResult.unscored(
                f"environment {world.name!r} rewards groups of episodes, and not one alone",
                error_type=NO_REWARDS,
            )
        events = tuple(world.reward_events())
        values = [event.value for event in events if event.tag is None]
        if not values:
            raise RewardError(
                f"environment {world.name!r} gave no reward",
                hint="the episode may have ended before the world judged it",
            )
        value = float(_RULES[self.rule](values))
        low, high = self.reward_range
        if not low <= value <= high:  # also if it is not a number
            raise RewardError(
                f"the {self.rule} of the rewards is {value:g}, outside [{low:g}, {high:g}]",
                hint="set [verifier] reward_range to the range of the environment",
            )
        return VerifyResult(
            reward=value,
            items={event.tag: event.value for event in events if event.tag is not None},
            events=events,
            space=_space(events),
            meta={"rule": self.rule, "rewards": len(values), "terminal": world.terminal},
        )


def _space(events: Sequence[RewardEvent]) -> Literal["output", "action"]:
    """Return the space of the whole: `output` unless every reward judges an action."""
    return "action" if all(event.space == "action" for event in events) else "output"
