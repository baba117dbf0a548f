"""Grade in a twin, and in the agent's sandbox if the twin may lack something."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    Grading,
    NetworkMode,
    RewardError,
    SandboxSpec,
    TaskVerifier,
    VerifyResult,
)

from benchflow_reward.errors import RewardFormatError, VerifierTimeoutError

from .grading_protocol import LiveNode
from .grading_sandbox import has_services
from .live_state import LiveState, read_live_state
from .shared import grade_shared, has_shared_grading
from .twin import TwinRun, grade_twin

_FULL = 1.0
_ORDER: tuple[NetworkMode, ...] = ("none", "model-only", "allowlist", "public")

Attribute = Callable[[Grading, Awaitable[VerifyResult]], Awaitable[VerifyResult]]
"""Turns an error of a grading into a verdict, or raises the error with its cause."""


async def grade_where_needed(live: LiveNode, settled: Attribute) -> VerifyResult:
    """Grade in a twin, and in the agent's own sandbox if the twin cannot decide.

    A task may want a server that runs, which no copy of files holds. If something runs, or is in
    memory, and the twin does not give the full reward, the tests run once more in the agent's
    sandbox, and that verdict holds. It is never `clean`; `meta["in_place"]` gives the reason.

    Services beside a sandbox would be asked twice, and tests of an earlier step inside are
    the agent's changes in a twin: then the tests run in the agent's sandbox alone.

    Raises:
        RewardError: The task's own solution needs a grading in place, and the tests may reach
            more than the agent.
    """
    state = await read_live_state(live.sandbox)
    if has_shared_grading(live):
        return await _in_place(live, settled, ["an earlier step was graded in place"])
    if not state.is_lost_in_a_copy:
        run = TwinRun(state)
        return await settled("twin", grade_twin(live, run))
    if not _may_reach(live.sandbox.spec, live.task.config.verifier):
        return await _never_in_place(live, settled, state)
    if has_services(live.sandbox):
        return await _in_place(live, settled, state.reasons)
    run = TwinRun(state, keep=True)
    try:
        verdict = await _of_twin(live, run, settled)
    except (RewardFormatError, VerifierTimeoutError) as error:
        return await _in_place(live, settled, run.missing, run, type(error).__name__)
    if verdict.reward == _FULL:
        return verdict
    return await _in_place(live, settled, run.missing, run, verdict.reward)


async def _never_in_place(live: LiveNode, settled: Attribute, state: LiveState) -> VerifyResult:
    """Grade in a twin. An agent must not win by a lost process; a solution must not fail by it."""
    verdict = await settled("twin", grade_twin(live, TwinRun(state)))
    why = "the tests may reach more than the agent, so nothing of the agent runs beside them"
    if live.plays_solution and verdict.reward != _FULL:
        raise RewardError(
            f"the task's own solution got {verdict.reward} in a twin, which lacks what it left"
            f" ({'; '.join(state.reasons)}), and cannot be graded in place: {why}",
            hint="give the agent the network of the tests, or let the tests start what they need",
        )
    return verdict.model_copy(update={"meta": {**verdict.meta, "not_in_place": why}})


async def _of_twin(live: LiveNode, run: TwinRun, settled: Attribute) -> VerifyResult:
    """Grade in a twin. Without a verdict there, raise: nothing further is tried."""
    no_verdict = list[RewardFormatError | VerifierTimeoutError]()

    async def grade() -> VerifyResult:
        try:
            return await grade_twin(live, run)
        except (RewardFormatError, VerifierTimeoutError) as error:
            no_verdict.append(error)
            return VerifyResult.unscored(str(error))

    verdict = await settled("twin", grade())
    if no_verdict:
        raise no_verdict[0]
    return verdict


async def _in_place(
    live: LiveNode,
    settled: Attribute,
    why: list[str],
    twin: TwinRun | None = None,
    said: float | str | None = None,
) -> VerifyResult:
    meta: dict[str, Any] = {"why": why}
    if twin is not None:
        meta["twin"] = said
        await asyncio.to_thread(_set_aside, live.log_dir)
    verdict = await settled("shared", grade_shared(live, None if twin is None else twin.hooks))
    return verdict.model_copy(update={"meta": {**verdict.meta, "in_place": meta}})


def _set_aside(log_dir: Path | None) -> None:
    """Move the logs of the tests in the twin to `twin/`, beside those of the tests in place."""
    if log_dir is None or not log_dir.is_dir():
        return
    aside = log_dir.with_name(f"{log_dir.name}-twin")
    shutil.rmtree(aside, ignore_errors=True)
    log_dir.rename(aside)
    log_dir.mkdir()
    aside.rename(log_dir / "twin")


def _may_reach(spec: SandboxSpec, verifier: TaskVerifier) -> bool:
    """Whether the tests reach in the agent's sandbox at least what the task lets them reach."""
    if verifier.network == spec.network == "allowlist":
        return set(verifier.allowed_hosts) <= set(spec.allowed_hosts)
    return _ORDER.index(verifier.network) <= _ORDER.index(spec.network)
