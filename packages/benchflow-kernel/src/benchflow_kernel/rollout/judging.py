"""Give rewards the judge's model, and refuse a score that rests on a failed call."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from benchflow_contracts import (
    BenchFlowError,
    Cause,
    JudgeModel,
    JudgeUse,
    ModelCall,
    ModelRoute,
    VerifyResult,
)

from benchflow_kernel.resolve import JudgePlane

_PASSING: Final = frozenset({0, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True, slots=True)
class Judging:
    """The judge's model during one scoring, and the calls that the scoring made."""

    model: JudgeModel | None = None
    route: ModelRoute | None = None
    failure: BenchFlowError | None = None
    """Why the model cannot be asked."""
    earlier: int = 0
    """The calls of other rewards of the node."""

    def checked(self, result: VerifyResult) -> VerifyResult:
        """Return the verdict with its use of the model; unscored if the model failed.

        A reward that catches the failure of a call and returns a number would score the model's
        endpoint instead of the agent. So the last try of each request must have succeeded.
        """
        if self.failure is not None:
            return _unscored(result, f"the judge cannot be asked: {self.failure}", passes=True)
        if self.route is None:
            return result
        calls = self.route.calls()[self.earlier :]
        if self.route.error is not None:
            result = _unscored(result, f"the judge was refused: {self.route.error}", passes=False)
        for call in _last_tries(calls):
            if call.status != HTTPStatus.OK or call.error is not None:
                reason = f"the judge's call {call.id} failed with status {call.status}"
                if call.error is not None:
                    reason += f": {call.error}"
                is_passing = call.status in _PASSING or call.status >= 500 or call.status == 200
                result = _unscored(result, reason, passes=is_passing)
        return result.model_copy(update={"judge": JudgeUse.of(calls)}) if calls else result


@asynccontextmanager
async def judged(judge: JudgePlane | None, rollout_id: str, node: str) -> AsyncGenerator[Judging]:
    """Yield the judge's model for the scoring of a node by one reward."""
    if judge is None:
        yield Judging()
        return
    try:
        route = await judge.gateway.open(
            rollout_id, node, upstream=judge.upstream, budget=judge.budget
        )
    except BenchFlowError as error:
        yield Judging(failure=error)
        return
    try:
        model = JudgeModel(route.endpoint, judge.model)
        yield Judging(model, route, earlier=len(route.outline()))
    finally:
        await route.aclose()


def _last_tries(calls: Sequence[ModelCall]) -> Sequence[ModelCall]:
    """Return the last call with each request."""
    tries = {
        json.dumps([call.api, call.request], sort_keys=True, default=str): call for call in calls
    }
    return list(tries.values())


def _unscored(result: VerifyResult, reason: str, *, passes: bool) -> VerifyResult:
    if result.reward is None:
        return result
    return VerifyResult.unscored(
        reason,
        grading=result.grading,
        error_type="JudgeError",
        retryable=passes,
        cause=Cause(by="host" if passes else "operator", what=reason),
    )
