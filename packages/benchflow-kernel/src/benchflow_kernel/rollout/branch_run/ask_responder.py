"""Answer the agent's questions."""

import asyncio

from benchflow_contracts import Answer, Ask, BenchFlowError

from benchflow_kernel.branch import Exchange, Replay, ReplayLog
from benchflow_kernel.faults import boundary
from benchflow_kernel.rollout.branch_start import Fork

from .fork_controller import ForkController
from .progress import BranchContext, Interruption, Progress


class AskResponder:
    """Answers each question of one branch from the record, by a fork, or by the user."""

    def __init__(
        self,
        branch: BranchContext,
        progress: Progress,
        replay: Replay,
        replay_log: ReplayLog,
        forks: ForkController,
        interruption: Interruption,
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._replay_log = replay_log
        self._forks = forks
        self._interruption = interruption

    async def answer(self, ask: Ask) -> Answer:
        """Answer a question. If it ends the branch, wait until the prompt is cancelled."""
        if self._interruption.reason is None:
            try:
                reply = await self._reply(ask)
            except BenchFlowError as error:
                # An error that is raised here would become an error of the session.
                self._interruption.interrupt(error)
            else:
                if isinstance(reply, Answer):
                    return reply
                self._interruption.interrupt(reply)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    async def answer_restored(self, ask: Ask) -> Answer:
        """Answer the question that was open in the checkpoint of this branch."""
        return await self._answer(ask, self._replay.take(self._progress.turn, ask))

    async def _reply(self, ask: Ask) -> Answer | Fork:
        recorded: Answer | None = None
        may_fork = self._replay.live
        if not self._replay.live:
            recorded = self._replay.take(self._progress.turn, ask)
            # The last question of a replay was forked before, unless the branch was resumed.
            may_fork = self._branch.start.resumed and recorded is None and self._replay.live
        if may_fork:
            fork = await self._forks.at_ask(self._progress.cursor, ask)
            if fork is not None and not self._forks.continues_after(fork):
                return fork
        return await self._answer(ask, recorded)

    async def _answer(self, ask: Ask, recorded: Answer | None) -> Answer:
        """Return the recorded answer, or the user's. Write either into the replay log."""
        exchange = Exchange(turn=self._progress.turn, ask=ask, answer=recorded)
        place = self._replay_log.append(exchange)
        if recorded is not None:
            return recorded
        steps = self._branch.journal.node(self._progress.tip).steps
        with boundary("environment"):
            answer = await self._branch.world.user.answer(ask, steps)
        self._replay_log.set_answer(place, answer)
        return answer
