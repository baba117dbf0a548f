"""Fork a finished rollout at one of its model calls: repeat it up to the call, then sample anew."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    Answer,
    Ask,
    ModelCall,
    RolloutNode,
    Step,
    UsageError,
    UserModel,
)
from benchflow_kernel import Planes
from benchflow_store import new_rollout_id

from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.preflight import check_agent, check_endpoint
from benchflow_engine.rollout import RunResult, Subscriber, run_in
from benchflow_engine.secrets import with_secrets

from .repeat import RecordedUser, TapeGateway
from .run_inputs import RunInputs


async def branch_at_call(
    inputs: RunInputs,
    call: int,
    leaf: RolloutNode,
    *,
    n: int,
    flags: Mapping[str, Any] | None = None,
    jobs_dir: Path | None = None,
    subscribers: Sequence[Subscriber] = (),
) -> RunResult:
    """Run one rollout that forks into `n` children at model call number `call` of a trajectory.

    The trajectory ends in `leaf`. It is repeated from the start of the task: the record answers the
    calls and questions before `call`, counted from 1 as `BranchRecord.call`. Each child gets an
    answer of the model. No saved checkpoint is needed. If the agent makes another request than the
    recorded one before the fork, the rollout has no score. `flags` are more flags of `bench run`.

    Raises:
        BenchFlowError: The record has no such call, or an option or the task is wrong; nothing has
            run.
    """
    before = calls_before(inputs.stored.calls_to(leaf), call)
    steps = _steps_before(leaf.steps, before)
    unforked = inputs.config.model_copy(update={"branch": None})
    fork = {"branch": "group", "branch_n": n, "branch_at_call": call, "branch_children": max(n, 8)}
    config = with_secrets(run_config(unforked, **{"keep": "none", **(flags or {}), **fork}))
    check_agent(config)
    await check_endpoint(config)
    name = new_rollout_id(inputs.task.id)
    async with open_provider(config) as provider:
        return await run_in(
            provider,
            inputs.task,
            config,
            directory=None if jobs_dir is None else jobs_dir / name,
            subscribers=subscribers,
            prepare=partial(_with_prefix, calls=before, steps=steps),
        )


def calls_before(calls: Sequence[ModelCall], number: int) -> tuple[ModelCall, ...]:
    """Return the recorded calls before answered call `number` of the agent's work, from 1.

    Raises:
        UsageError: The record has fewer calls.
    """
    is_work = [call.purpose == "main" and call.status == 200 and not call.error for call in calls]
    places = [at for at, counts in enumerate(is_work) if counts]
    if not 1 <= number <= len(places):
        raise UsageError(
            f"the trajectory has no model call {number}: the record has {len(places)} answered"
            " calls of the agent's work",
            hint="count from 1, or name another leaf",
        )
    return tuple(calls[: places[number - 1]])


def _steps_before(steps: Sequence[Step], before: Sequence[ModelCall]) -> Sequence[Step]:
    """Return the steps up to the one with the next call, with its prompt and its answer."""
    known = {call.id for call in before}
    at = next((i for i, step in enumerate(steps) if set(step.model_calls) - known), len(steps))
    return steps[: at + 1]


def _with_prefix(planes: Planes, *, calls: Sequence[ModelCall], steps: Sequence[Step]) -> Planes:
    """Return the planes whose first world repeats the record. The others are children."""
    gateway = None if planes.gateway is None else TapeGateway(planes.gateway, calls)
    users = chain([lambda: PrefixUser(steps, planes.user())], repeat(planes.user))
    return replace(planes, gateway=gateway, user=lambda: _next(users))


def _next(users: "chain[Callable[[], UserModel]]") -> UserModel:
    return next(users)()


class PrefixUser:
    """A user that first repeats the answers and prompts of the record, and then is another one."""

    def __init__(self, steps: Sequence[Step], then: UserModel) -> None:
        self._recorded = RecordedUser(steps)
        self._then = then

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Return the recorded answer; without one, that of the other user.

        Raises:
            EnvironmentError_: The question differs from the recorded one.
        """
        user = self._recorded if self._recorded.has_answers else self._then
        return await user.answer(ask, steps)

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the recorded prompt of the next turn; without one, that of the other user."""
        prompt = await self._recorded.nudge(steps)
        return await self._then.nudge(steps) if prompt is None else prompt

    async def aclose(self) -> None:
        """Release the other user."""
        await self._then.aclose()
