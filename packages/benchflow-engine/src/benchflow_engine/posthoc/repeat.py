"""Run a finished trajectory again from its record, and compare both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from benchflow_contracts import (
    Answer,
    Ask,
    CallBudget,
    Endpoint,
    EnvironmentError_,
    ModelCall,
    ModelGateway,
    ModelRoute,
    RolloutNode,
    Step,
    UsageError,
)
from benchflow_kernel import Planes
from benchflow_store import StoredRollout, new_rollout_id

from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.preflight import check_agent
from benchflow_engine.rollout import RunResult, Subscriber, run_in
from benchflow_engine.secrets import with_secrets

from .run_inputs import RunInputs


@dataclass(frozen=True, slots=True)
class RepeatReport:
    """The result of repeating a trajectory."""

    result: RunResult
    steps: int
    """Steps of the recorded trajectory."""
    same_steps: int
    """The number of equal steps from the start: messages, tool calls and their results."""
    reward: float | None
    """The recorded reward."""
    replayed_calls: int
    """Model calls that were answered from the record."""

    @property
    def same(self) -> bool:
        """Whether the steps and the reward equal the record."""
        return (
            self.same_steps == self.steps == len(self.result.tree.leaves[0].steps)
            and self.reward == self.result.reward
        )


async def repeat_rollout(
    inputs: RunInputs,
    leaf: RolloutNode,
    *,
    jobs_dir: Path | None = None,
    subscribers: Sequence[Subscriber] = (),
) -> RepeatReport:
    """Run the trajectory that ends in `leaf` again, in a new world.

    The agent gets the recorded model responses, answers and prompts, in their order. The
    gateway refuses another model request, and another question ends the rollout unscored:
    neither counts as a repetition.

    Raises:
        BenchFlowError: The record, an option or the task is wrong; nothing has run.
    """
    if inputs.stored.tree.status == "running":
        raise UsageError(
            f"rollout {inputs.stored.tree.rollout_id!r} was interrupted: its trajectory has no end",
            hint="`bench rollout branch` resumes from its saved checkpoints",
        )
    config = with_secrets(run_config(inputs.config, branch=None, keep="none"))
    check_agent(config)
    name = new_rollout_id(inputs.task.id)
    async with open_provider(config) as provider:
        result = await run_in(
            provider,
            inputs.task,
            config,
            directory=None if jobs_dir is None else jobs_dir / name,
            subscribers=subscribers,
            prepare=partial(_recorded, leaf=leaf, calls=inputs.stored.calls_to(leaf)),
        )
    calls = () if result.directory is None else StoredRollout(result.directory).calls.values()
    return RepeatReport(
        result=result,
        steps=len(leaf.steps),
        same_steps=_same(leaf.steps, result.tree.leaves[0].steps),
        reward=leaf.reward,
        replayed_calls=sum(call.replayed for call in calls),
    )


def _recorded(planes: Planes, *, leaf: RolloutNode, calls: Sequence[ModelCall]) -> Planes:
    gateway = None if planes.gateway is None else TapeGateway(planes.gateway, calls)
    return replace(planes, gateway=gateway, user=lambda: RecordedUser(leaf.steps))


class TapeGateway:
    """A gateway whose first route replays the calls of a record. Later routes are of children."""

    def __init__(self, gateway: ModelGateway, calls: Sequence[ModelCall]) -> None:
        self._gateway = gateway
        self._calls = tuple(calls)

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> ModelRoute:
        """Open a route. In the first one, the calls of the record come before `replay`."""
        calls, self._calls = (*self._calls, *replay), ()
        return await self._gateway.open(
            rollout_id, node, upstream=upstream, replay=calls, budget=budget
        )

    async def aclose(self) -> None:
        """Close the gateway. Idempotent."""
        await self._gateway.aclose()


class RecordedUser:
    """A user that repeats the answers and prompts of the record, in order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        asks = [step.ask for step in steps if step.ask is not None]
        answers = [step.answer for step in steps if step.answer is not None]
        self._exchanges = list(zip(asks, answers, strict=False))
        self._prompts = [step.prompt for step in steps if step.prompt is not None]

    @property
    def has_answers(self) -> bool:
        """Whether recorded answers are left."""
        return bool(self._exchanges)

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Return the recorded answer.

        Raises:
            EnvironmentError_: The question differs from the recorded one.
        """
        del steps
        if not self._exchanges:
            raise EnvironmentError_("the agent asks more questions than the record has answers")
        recorded, answer = self._exchanges.pop(0)
        if [q.text for q in recorded.questions] != [q.text for q in ask.questions]:
            raise EnvironmentError_(
                f"the agent asks {ask.questions[0].text!r}, and on record is"
                f" {recorded.questions[0].text!r}"
            )
        return answer

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the recorded prompt of the next turn."""
        done = sum(step.prompt is not None for step in steps)
        return self._prompts[done] if done < len(self._prompts) else None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


def _same(recorded: Sequence[Step], repeated: Sequence[Step]) -> int:
    pairs = zip_longest(map(_content, recorded), map(_content, repeated))
    same = 0
    for one, other in pairs:
        if one != other:
            break
        same += 1
    return same


def _content(step: Step) -> tuple[object, ...]:
    """Return the content of a step without ids and times, which differ in each run."""
    calls = [(call.name, call.title, call.raw_input) for call in step.tool_calls]
    seen = [(seen.status, seen.content) for seen in step.observations]
    asked = None if step.ask is None else [question.text for question in step.ask.questions]
    return step.message, step.reasoning, calls, seen, asked
