"""The callbacks of a session: answer the agent's questions, and record its steps."""

import asyncio
from collections.abc import Sequence

from benchflow_contracts import Answer, Ask, BenchFlowError, ModelCall, Step, StoreError, Usage

from benchflow_kernel.branch import Exchange, Replay, ReplayLog
from benchflow_kernel.faults import boundary
from benchflow_kernel.resolve import LoweredTurn
from benchflow_kernel.rollout.branch_start import Fork

from .activity_recorder import ActivityRecorder, known_usage
from .fork_controller import ForkController
from .progress import BranchContext, Interruption, Progress
from .rollout_saver import RolloutSaver


class AskResponder:
    """Answers each question of one branch from the record, by a fork, or by the user."""

    def __init__(
        self,
        branch: BranchContext,
        progress: Progress,
        replay: Replay,
        replay_log: ReplayLog,
        forks: ForkController,
        saver: RolloutSaver,
        activity: ActivityRecorder,
        interruption: Interruption,
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._replay_log = replay_log
        self._forks = forks
        self._saver = saver
        self._activity = activity
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
        recorded = self._replay.take(self._progress.turn, ask)
        self._activity.start_turn(None)
        self._activity.open_question(ask)
        return await self._answer(ask, recorded)

    async def _reply(self, ask: Ask) -> Answer | Fork:
        recorded: Answer | None = None
        may_fork = self._replay.is_finished
        if not self._replay.is_finished:
            recorded = self._replay.take(self._progress.turn, ask)
            # The last question of a replay was forked before, unless the branch was resumed.
            may_fork = self._branch.start.resumed and recorded is None and self._replay.is_finished
        self._activity.open_question(ask)
        if may_fork:
            await self._saver.at_ask(self._progress.cursor, ask)
            fork = await self._forks.at_ask(self._progress.cursor, ask)
            if fork is not None and not self._forks.continues_after(fork):
                return fork
        return await self._answer(ask, recorded)

    async def _answer(self, ask: Ask, recorded: Answer | None) -> Answer:
        """Return the recorded answer, or the user's. Write either into the replay log."""
        exchange = Exchange(turn=self._progress.turn, ask=ask, answer=recorded)
        place = self._replay_log.append(exchange)
        if recorded is not None:
            self._activity.answer_question(ask, recorded, "branch")
            return recorded
        if ask.kind == "fork":
            declined = Answer(outcome="declined")
            self._replay_log.set_answer(place, declined)
            self._activity.answer_question(ask, declined, "branch")
            return declined
        steps = self._branch.journal.node(self._progress.tip).steps
        with boundary("environment"):
            answering = self._branch.world.user.answer(ask, steps)
            answer = await self._saver.answered(self._progress.cursor, ask, answering)
        self._replay_log.set_answer(place, answer)
        self._activity.answer_question(ask, answer, "user")
        return answer


class StepRecorder:
    """Adds each new step of one branch to the tree.

    A step gets the role, the skills and the prompt of its turn, and each model call of the
    branch goes to one step. Steps that repeat recorded ones are in the tree already.
    """

    def __init__(
        self,
        branch: BranchContext,
        progress: Progress,
        replay: Replay,
        activity: ActivityRecorder,
        interruption: Interruption,
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._activity = activity
        self._interruption = interruption
        self._assigned_calls = 0
        """How many model calls belong to steps that are in the tree."""
        self.prompt: str | None = None
        """The prompt that the next step answers."""

    @property
    def has_new_calls(self) -> bool:
        """Whether model calls have ended that belong to no step yet."""
        return len(self._branch.world.calls) > self._assigned_calls

    def skip_calls(self) -> None:
        """Note that all model calls so far belong to recorded steps."""
        self._assigned_calls = len(self._branch.world.calls)

    def record(self, step: Step) -> None:
        """Add `step` below the last node. If the record cannot be written, end the branch."""
        prompt, self.prompt = self.prompt, None
        if self._interruption.reason is not None:
            return
        progress, start, journal = self._progress, self._branch.start, self._branch.journal
        calls = self._branch.world.calls
        if (outside := self._branch.world.outside) is not None:
            outside.end_step(step.id)
        if not self._replay.is_finished:
            self._assigned_calls = len(calls)
            return
        is_first = start.id != start.node and progress.tip == start.node
        node = start.id if is_first else journal.new_id()
        label = start.label if is_first else None
        full_step = _with_turn(step, progress.current, prompt, self._own_calls(step, calls))
        try:
            journal.add_step(progress.tip, node, full_step, label)
        except StoreError as error:
            self._interruption.interrupt(error)
        else:
            progress.tip = node
            self._activity.report_turn(full_step)

    def _own_calls(self, step: Step, calls: Sequence[ModelCall]) -> Sequence[ModelCall]:
        """Return the model calls of `step`.

        A tool returns its result after the call that asked for the tool, and before the next
        call. A step that ends a turn, or that waits for an answer, gets all remaining calls.
        """
        new_calls = calls[self._assigned_calls :]
        if step.stop_reason is None and step.ask is None:
            later = (at for at, call in enumerate(new_calls) if call.finished_at > step.finished_at)
            new_calls = new_calls[: next(later, len(new_calls))]
        self._assigned_calls += len(new_calls)
        return new_calls


def _with_turn(
    step: Step, turn: LoweredTurn, prompt: str | None, calls: Sequence[ModelCall]
) -> Step:
    role = turn.role
    update: dict[str, object] = {}
    if step.role != role.name:
        update["role"] = role.name
    if step.skills != role.skills:
        update["skills"] = role.skills
    if step.prompt is None and prompt is not None:
        update["prompt"] = prompt
    if calls:
        update["model_calls"] = tuple(call.id for call in calls)
        update["usage"] = _usage(calls)
    elif step.usage is not None and known_usage(step.usage) is None:
        update["usage"] = None
    return step.model_copy(update=update) if update else step


def _usage(calls: Sequence[ModelCall]) -> Usage | None:
    """Return the tokens of `calls`, or None if no call reported any."""
    total = Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cached_tokens=sum(call.usage.cached_tokens for call in calls),
    )
    return known_usage(total)
