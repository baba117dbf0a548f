"""Run single turns of one branch."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from benchflow_contracts import (
    AgentError,
    AgentExitError,
    AgentTimeoutError,
    Ask,
    BenchFlowError,
    NeedsModelCalls,
    NodeError,
    SandboxError,
    SandboxLimitError,
    Session,
    SnapshotError,
    StopReason,
    blame,
    caused_inside,
)

from benchflow_kernel.branch import Replay
from benchflow_kernel.faults import boundary, node_error
from benchflow_kernel.rollout.branch_start import Fork
from benchflow_kernel.world import LiveSessions, SessionHandlers, call_forks_of, watch_sandbox

from .activity_recorder import ActivityRecorder
from .call_responder import CallResponder
from .callbacks import AskResponder, StepRecorder
from .progress import BranchContext, BranchState, Interruption, Progress


class TurnRunner:
    """Sends the prompts of one branch to its sessions, and says how each turn ended."""

    def __init__(
        self,
        branch: BranchContext,
        progress: Progress,
        replay: Replay,
        recorder: StepRecorder,
        responder: AskResponder,
        calls: CallResponder,
        activity: ActivityRecorder,
        interruption: Interruption,
    ) -> None:
        self._branch = branch
        self._progress = progress
        self._replay = replay
        self._recorder = recorder
        self._responder = responder
        self._calls = calls
        self._activity = activity
        self._interruption = interruption
        checkpoint = branch.start.checkpoint
        self.restored_ask: Ask | None = None if checkpoint is None else checkpoint.ask
        """The question that was open in the checkpoint, until it is answered."""
        self.at_call = checkpoint is not None and checkpoint.at_call
        """Whether the checkpoint is at a model call, until its turn continues."""
        self.early_end: NodeError | None = None
        """Why the agent ended its work early. The branch is still graded."""

    async def attach(self, sessions: LiveSessions) -> None:
        """Attach to the sessions whose processes came with a live checkpoint."""
        world = self._branch.world
        self._branch.journal.enter_phase(self._branch.start.id, "connect")
        await world.sessions.attach(world.sandbox, sessions, self._handlers)

    async def connect(self) -> Session:
        """Return the session of the current turn's role; open it if needed.

        Raises:
            AgentError: The agent did not start, or not in time.
        """
        world = self._branch.world
        if not world.sessions.any_opened:
            self._branch.journal.enter_phase(self._branch.start.id, "connect")
        role = self._progress.current.role
        return await world.sessions.get(world.sandbox, role, self._handlers)

    async def run(self) -> Fork | StopReason | None:
        """Run the current turn; return the fork or the reason that ended it.

        The result is `None` if the turn was interrupted for another reason.

        Raises:
            BenchFlowError: A failure that the agent did not cause.
        """
        session = await self.connect()
        if self._progress.state is BranchState.READY:
            self._branch.journal.enter_phase(self._branch.start.id, "execute")
        stop = await self._prompt(session)
        self._progress.state = (
            BranchState.IDLE if self._replay.is_finished else BranchState.REPLAYED
        )
        if isinstance(self._interruption.reason, Fork):
            return self._interruption.reason
        if stop == "end_turn":
            self._replay.end_turn(self._progress.turn)
        return stop

    def end_early(self, error: NodeError) -> None:
        """Note that the agent ended its work early.

        Raises:
            SnapshotError: The agent only repeated recorded turns so far.
        """
        if not self._replay.is_finished:
            raise SnapshotError(f"the child did not reach the fork again: {error.message}")
        self.early_end = error

    def check_model(self) -> bool:
        """Return whether a model error that the agent caused ended its work.

        Raises:
            BenchFlowError: A model error that the agent did not cause.
        """
        error = self._model_error()
        if error is None:
            return False
        self.end_early(node_error(error, blame(error, inside="agent")))
        return True

    def _model_error(self) -> AgentError | None:
        error = self._branch.world.model_error
        if error is None or isinstance(error, AgentError):
            return error
        raise error

    async def _prompt(self, session: Session) -> StopReason | None:
        """Run one turn, or the rest of a turn; return `None` if it was interrupted."""
        agent_error: BenchFlowError | None = None
        stop: StopReason | None = None
        turn = await self._turn_call(session)
        interruption = self._interruption
        # A deadline that expires in the block below leaves this state: it was the agent's turn.
        self._progress.state = BranchState.PROMPTING
        self._progress.has_acted = True
        try:
            async with interruption.new_scope():
                self._branch.world.watch_model(self._on_outside_error)
                async with (
                    watch_sandbox(self._branch.world.sandbox, self._on_outside_error),
                    self._calls.during_turn(),
                ):
                    with boundary("agent"):
                        stop = await turn()
        except (AgentError, SandboxLimitError) as error:
            if interruption.reason is None:
                self._model_error()  # an agent without its model fails, too
                agent_error = await self._attribute(error)
        except (TimeoutError, BenchFlowError):
            if interruption.reason is None:
                raise
        self._progress.state = BranchState.IDLE
        reason = interruption.reason
        if isinstance(reason, BenchFlowError) and reason is not self._branch.world.model_error:
            raise reason
        if self.check_model() or reason is not None:
            return None
        if agent_error is not None:
            self.end_early(node_error(agent_error, blame(agent_error, inside="agent")))
        elif stop != "end_turn":
            self.end_early(_stop_error(stop))
        return stop

    async def _turn_call(self, session: Session) -> Callable[[], Awaitable[StopReason]]:
        """Return the call that runs the turn: a prompt, or the rest of a restored turn."""
        ask, self.restored_ask = self.restored_ask, None
        if ask is not None:
            return partial(session.answer, await self._responder.answer_restored(ask))
        if self.at_call:
            self.at_call = False
            self._activity.start_turn(None)
            return call_forks_of(session, self._progress.current.role.name).resume_turn
        if hasattr(session, "read_calls_from"):
            world = self._branch.world
            source = partial(world.calls_since, len(world.calls))
            cast("NeedsModelCalls", session).read_calls_from(source)
        self._recorder.prompt = prompt = self._text()
        self._activity.start_turn(prompt)
        return partial(session.prompt, prompt)

    @property
    def _handlers(self) -> SessionHandlers:
        return SessionHandlers(
            self._responder.answer, self._recorder.record, self._activity.receive
        )

    def _text(self) -> str:
        turn = self._progress.current
        if turn.prompt is not None:
            return turn.prompt
        task, outside = self._branch.plan.task_of(turn), self._branch.world.outside
        own = None if outside is None else outside.prompt
        return task.config.agent.prompt_prefix + (task.instruction if own is None else own)

    async def _attribute(self, error: BenchFlowError) -> BenchFlowError:
        """Return the error that the agent caused. Raise the error if something else caused it."""
        is_agents_error = isinstance(error, AgentTimeoutError | AgentExitError | SandboxLimitError)
        try:
            await self._branch.world.expect_sandbox()
        except SandboxError as failed:
            if not caused_inside(failed):
                raise
            return error if is_agents_error else failed
        if is_agents_error:
            return error
        raise error

    def _on_outside_error(self, error: BenchFlowError) -> None:
        if self._progress.state is BranchState.PROMPTING:
            self._interruption.interrupt(error)


def _stop_error(stop: StopReason | None) -> NodeError:
    return NodeError(
        boundary="agent",
        type="StopReason",
        message=f"the agent ended its turn with {stop!r}",
        hint="the node is graded on the files that the agent left",
    )
