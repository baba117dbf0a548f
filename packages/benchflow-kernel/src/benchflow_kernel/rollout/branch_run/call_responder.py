"""Decide about each model call of one branch: it passes, it is the fork, or it waits."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchflow_contracts import BenchFlowError, PendingCall, SnapshotError

from benchflow_kernel.branch import Replay, forks_at_call
from benchflow_kernel.faults import boundary

from .callbacks import StepRecorder
from .fork_controller import ForkController, is_forked
from .progress import BranchContext, Interruption, Progress


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A model call that the turn's own task handles."""

    call: PendingCall
    passes: asyncio.Future[bool] | None
    """`None` if the call was deferred, and the branch forks there."""


class CallResponder:
    """The gate of a branch's model calls; see `SupportsCallGate`.

    To fork at a call, the gate defers the call: the agent then waits before it repeats the call,
    no connection is open, and the world can be captured. Each child's agent, and that of a parent
    that continues, repeats the call and gets an answer of its own. While the world is captured,
    and after the branch has ended, each further call is deferred, too.

    A child that replays its turn is at the fork when it makes the first call that is not recorded.
    """

    def __init__(
        self,
        branch: BranchContext,
        progress: Progress,
        replay: Replay,
        recorder: StepRecorder,
        forks: ForkController,
        interruption: Interruption,
    ) -> None:
        position = branch.start.position
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._recorder = recorder
        self._forks = forks
        self._interruption = interruption
        # The parent was forked at this call, unless the branch continues a finished one.
        number = 0 if position.call is None else position.call.number or 0
        self._decided = 0 if branch.start.resumed else number
        """The last call for which the policy was asked."""
        is_restored = position.checkpoint is not None and position.checkpoint.at_call
        self._deferred = number if is_restored else None
        """The deferred call that the agent has not repeated."""
        self._is_forking = False
        self._arrivals: asyncio.Queue[_Arrival] = asyncio.Queue()

    async def admit(self, call: PendingCall) -> bool:
        """Return whether a model call of this world goes to the upstream now."""
        if self._is_forking or self._interruption.reason is not None:
            return False
        if call.number is None:
            return True
        if self._replay.awaits_call and not await self._reach(call, call.number):
            return False
        number = self._progress.calls_before + call.number
        if self._should_fork(number):
            self._is_forking, self._deferred = True, number
            pending = call.model_copy(update={"number": number})
            self._arrivals.put_nowait(_Arrival(pending, None))
            return False
        self._deferred = None
        return True

    async def _reach(self, call: PendingCall, number: int) -> bool:
        """Return whether a replaying child has reached the fork with this call."""
        passes: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._arrivals.put_nowait(_Arrival(call, passes))
        forked = self._branch.start.position.call
        if forked is not None and forked.number is not None:
            # The child need not repeat calls beside its work, and still is at the parent's call.
            self._progress.calls_before = forked.number - number
        return await passes

    @asynccontextmanager
    async def during_turn(self) -> AsyncGenerator[None]:
        """Handle the calls of one turn inside this block.

        Raises:
            SnapshotError: The agent ended its turn instead of repeating a deferred call.
        """
        worker = asyncio.get_running_loop().create_task(self._work())
        failure: Exception | None = None
        try:
            yield
        except (TimeoutError, BenchFlowError) as error:
            failure = error
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            self._is_forking = False
        if self._deferred is not None and self._interruption.reason is None:
            raise SnapshotError(
                f"the agent ended its turn at model call {self._deferred}, which was deferred for a"
                f" fork{'' if failure is None else f': {failure}'}",
                hint="fork only agents that repeat a call after HTTP 503, such as policy",
            ) from failure
        if failure is not None:
            raise failure

    def _should_fork(self, call: int) -> bool:
        policy = self._branch.start.policy
        if policy is None or call <= self._decided or not self._replay.is_finished:
            return False
        self._decided = call
        should = forks_at_call(policy, call, self._branch.plan.rollout_id)
        is_new = should and not self._is_forked_state()
        return is_new and self._forks.allows(self._progress.cursor, policy)

    def _is_forked_state(self) -> bool:
        """Return whether the branch is still at a state that was forked before."""
        start, tip = self._branch.start, self._progress.tip
        if self._recorder.has_new_calls:
            return False
        is_first = start.id != start.node and tip == start.node
        return is_first or is_forked(self._branch.journal.node(tip))

    async def _work(self) -> None:
        """Handle the arrivals in the context of the turn."""
        while True:
            arrival = await self._arrivals.get()
            passes = False
            try:
                with boundary("internal"):
                    passes = await self._handle(arrival)
            except BenchFlowError as error:
                self._interruption.interrupt(error)
            finally:
                self._is_forking = False
                if arrival.passes is not None and not arrival.passes.done():
                    arrival.passes.set_result(passes)

    async def _handle(self, arrival: _Arrival) -> bool:
        if arrival.passes is not None:
            await self._end_step()
            self._recorder.skip_calls()
            self._replay.reach_call(arrival.call)
            return True
        try:
            await self._end_step()
        except SnapshotError as error:
            self._forks.refuse_call(self._progress.cursor, str(error))
            return False
        role = self._progress.current.role.name
        with self._branch.world.sessions.at_call(role):
            fork = await self._forks.at_call(self._progress.cursor, arrival.call)
        if fork is not None and not self._forks.continues_after(fork):
            self._interruption.interrupt(fork)
        return False

    async def _end_step(self) -> None:
        """Let the calls before this one belong to a step of their own, which is then the tip."""
        role, has_calls = self._progress.current.role.name, self._recorder.has_new_calls
        await self._branch.world.sessions.end_step(role, also_empty=has_calls)
