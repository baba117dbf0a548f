"""A branch run: one path through one world, up to its end or its fork."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from benchflow_contracts import (
    AgentError,
    AgentExitError,
    AgentProtocolError,
    AgentTimeoutError,
    Answer,
    Ask,
    BenchFlowError,
    EnvironmentError_,
    NodeError,
    ReplayDivergedError,
    SandboxError,
    SandboxLimitError,
    Session,
    SnapshotError,
    Step,
    StopReason,
    StoreError,
    blame,
    caused_inside,
)

from benchflow_kernel.branch import Exchange, Replay
from benchflow_kernel.faults import boundary, node_error
from benchflow_kernel.resolve import Plan
from benchflow_kernel.scenes import LoweredTurn
from benchflow_kernel.world import World

from .attribution import Attribution
from .branch_start import BranchStart, Position
from .fork import Fork
from .fork_controller import Cursor, ForkController, ForkServices
from .journal import Journal
from .replay_log import ReplayLog
from .stages import Stages


class BranchRun:
    """Runs the turns of one world and hangs its steps into the tree.

    At each turn's start and each question the fork controller is asked for a fork. One
    whose policy lets the line go on is given to `probe`, any other ends the line.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        world: World,
        start: BranchStart,
        services: ForkServices,
        probe: Callable[[Fork], None],
    ) -> None:
        position = start.position
        checkpoint = position.checkpoint
        self._plan = plan
        self._journal = journal
        self._world = world
        self._start = start
        self._probe = probe
        self._replay_log = ReplayLog(position, services.refs)
        self._forks = ForkController(services, journal, world, start, self._replay_log)
        self._stages = Stages(plan, journal, world, start)
        self._attribution = Attribution()
        self._schedule = position.schedule
        self._turn = 0 if checkpoint is None else checkpoint.turn
        self._replay = Replay(position.script, since=self._turn, until=position.turn)
        self._pending = None if checkpoint is None else checkpoint.ask
        self._opening: str | None = None
        self._current = self._schedule[min(self._turn, len(self._schedule) - 1)]
        self._executing = False
        self._ungraded = False
        self._retraced = False
        self._prompting = False
        self.acted = False
        self._scope = asyncio.timeout(None)
        self._end: Fork | BenchFlowError | None = None
        self._graded: NodeError | None = None
        self.tip = start.node
        self.prompted = False
        """Whether a turn was run."""

    @property
    def task_step(self) -> int:
        """The step of the task that comes next, or that runs."""
        return self._current.task_step

    @property
    def has_steps(self) -> bool:
        """Whether the line added a node of its own."""
        return self.tip != self._start.node

    @property
    def ungraded(self) -> int | None:
        """The step of the task that this line has run and not graded, if there is one."""
        return self._current.task_step if self._ungraded else None

    async def attach(self) -> None:
        """Take hold of the sessions that a live checkpoint carried into the world."""
        checkpoint = self._start.checkpoint
        if checkpoint is not None and checkpoint.live is not None:
            self._journal.phase(self._start.id, "connect")
            await self._world.sessions.attach(
                self._world.sandbox, checkpoint.live.sessions, self._asked, self._stepped
            )

    @property
    def opens_at_once(self) -> bool:
        """Whether all that comes before the first prompt is to open its session.

        Not so where the line may fork before, and where the agent brings tools that could
        act on the world as soon as they are there.
        """
        start, checkpoint = self._start, self._start.checkpoint
        return (
            checkpoint is not None
            and checkpoint.live is None
            and not start.resumed
            and self._turn < len(self._schedule)
            and not self._current.role.mcp_servers
        )

    async def connect(self) -> None:
        """Open the session that the first prompt goes to.

        Raises:
            AgentError: The agent did not start, or not in time.
        """
        await self._connected()

    async def execute(self) -> Fork | None:
        """Run all turns; return the fork when one ended the line.

        What the agent brings on itself is graded, and only noted at the tip: running
        out of time, a refusal, a full context. Whatever else goes wrong is raised, and
        such a line has no reward. In a task of several steps each but the last one is graded
        on the way, and has the execute deadline to itself.

        Raises:
            BenchFlowError: A fault of the world, the agent's process or its protocol.
        """
        await self._stages.open(self._current.task_step)
        while True:
            fork = await self._within_deadline()
            if fork is not None or not await self._next_step():
                return fork

    async def _within_deadline(self) -> Fork | None:
        scope = asyncio.timeout(self._plan.config.deadlines.execute)
        try:
            async with scope:
                return await self._turns()
        except TimeoutError:
            if not scope.expired():
                raise
        what = f"the turns did not end within {self._plan.config.deadlines.execute:g} s"
        hint = "raise the execute deadline"
        if not self._prompting:
            raise EnvironmentError_(f"{what}, and it was not the agent's turn", hint=hint)
        self._give_up(node_error(AgentTimeoutError(what, hint=hint)))
        return None

    async def seal(self) -> Position | None:
        """Capture where the line ended, so that it can be gone on from.

        `None` for a line that nobody compares, or that did not end well. The caller
        owns one hold of the checkpoint.
        """
        if self._start.stop is None or self._graded is not None or not self.has_steps:
            return None
        # Whoever goes on from it begins there.
        await self._world.phases.agent(self.task_step)
        return await self._forks.seal(self._cursor)

    async def finish(self) -> str:
        """End the agents and return the leaf to be scored; no step is taken after this.

        Raises:
            AgentError: An agent cannot be ended.
            AgentProtocolError: A child made no step.
        """
        await self._end_agents()
        if self._world.unplayed:
            raise ReplayDivergedError(
                f"the agent ended without {self._world.unplayed} of the model calls on record"
            )
        return self.tip

    async def _end_agents(self) -> None:
        await self._world.sessions.aclose()
        await self._world.phases.after()
        if self._start.label is not None and not self.has_steps:
            raise AgentProtocolError("the agent made no step after the fork")
        self._heed_model()
        if self._graded is not None:
            self._journal.failed(self.tip, self._graded)

    async def aclose(self) -> None:
        """Let go of the line's checkpoints. Idempotent."""
        await self._replay_log.aclose()

    @property
    def _cursor(self) -> Cursor:
        return Cursor(self.tip, self._turn, self._schedule)

    async def _next_step(self) -> bool:
        """Grade the step that ended and make the next one ready; false when none follows."""
        following = self._following()
        if following is None:
            return False
        goes_on = await self._close_step()
        self._turn = following if goes_on else len(self._schedule)
        if goes_on:
            self._current = self._schedule[following]
            await self._stages.enter(self._current.task_step, self.tip)
        return goes_on and self._turn != self._start.stop

    async def _close_step(self) -> bool:
        """Return whether the next step may follow; one that was retraced is graded already."""
        self._executing = self._prompting = False
        if self._retraced:
            await self._world.sessions.aclose()
            return True
        await self._end_agents()
        self._graded = None
        self._ungraded = False
        return await self._stages.close(self._current.task_step, self.tip)

    def _following(self) -> int | None:
        """Return the turn that the next step begins with, if this line comes to it."""
        step, stop = self._current.task_step, self._start.stop
        later = (at for at, turn in enumerate(self._schedule) if turn.task_step > step)
        following = next(later, None)
        cut = following is not None and stop is not None and self._turn < following
        return None if cut else following

    async def _turns(self) -> Fork | None:
        """Run the turns of one step of the task."""
        step = self._current.task_step
        while self._turn < len(self._schedule) or await self._nudged():
            if self._schedule[self._turn].task_step != step:
                return None
            self._current = self._schedule[self._turn]
            await self._world.phases.agent(step)
            fork = await self._fork_before_turn()
            if fork is not None and not self._continues_after(fork):
                return fork
            session = await self._session()
            self._ungraded = self.prompted = True
            self._retraced = False
            stop = await self._prompt(session)
            self._retraced = not self._replay.live
            if isinstance(self._end, Fork):
                return self._end
            if stop != "end_turn":
                return None
            self._replay.end_turn(self._turn)
            self._turn += 1
            if self._turn == self._start.stop:
                return None
        return None

    async def _fork_before_turn(self) -> Fork | None:
        if self._pending is not None:
            return self._forks.at_restored_ask(self._cursor, self._pending)
        return await self._forks.at_turn(self._cursor) if self._replay.live else None

    def _continues_after(self, fork: Fork) -> bool:
        """Start the children of a fork that does not end this line."""
        if fork.policy.kind != "value":
            return False
        self._probe(fork)
        return True

    async def _session(self) -> Session:
        session = await self._connected()
        self._enter_execute()
        return session

    async def _connected(self) -> Session:
        if not self._world.sessions.any_opened:
            self._journal.phase(self._start.id, "connect")
        return await self._world.sessions.get(
            self._world.sandbox, self._current.role, self._asked, self._stepped
        )

    def _enter_execute(self) -> None:
        if not self._executing:
            self._executing = True
            self._journal.phase(self._start.id, "execute")

    async def _prompt(self, session: Session) -> StopReason | None:
        """Run one prompt turn, or the rest of one; `None` when it was cut short."""
        own: BenchFlowError | None = None
        stop: StopReason | None = None
        turn = await self._opened(session)
        self._prompting = self.acted = True
        try:
            async with asyncio.timeout(None) as self._scope:
                self._world.watch_model(self._model_ended)
                with boundary("agent"):
                    stop = await turn()
        except (AgentError, SandboxLimitError) as error:
            if self._end is None:
                own = await self._own_end(error)
        except (TimeoutError, BenchFlowError):
            if self._end is None:
                raise
        self._prompting = False
        if isinstance(self._end, BenchFlowError) and self._end is not self._world.model_error:
            raise self._end
        if self._heed_model() or self._end is not None:
            return None
        if own is not None:
            self._give_up(node_error(own, blame(own, inside="agent")))
        elif stop != "end_turn":
            self._give_up(_stopped(stop))
        return stop

    async def _own_end(self, error: BenchFlowError) -> BenchFlowError:
        """Return why the agent ended its turn by what it did; raise when that is not why."""
        if isinstance(error, AgentTimeoutError | AgentExitError | SandboxLimitError):
            return error
        try:
            await self._world.expect_sandbox()
        except SandboxError as failed:
            if not caused_inside(failed):
                raise
            return failed
        raise error

    def _model_ended(self, error: BenchFlowError) -> None:
        if self._prompting:
            self._interrupt(error)

    def _heed_model(self) -> bool:
        """Whether the model line ended the agent's work by what the agent brought on itself.

        Raises:
            BenchFlowError: It did so for another reason: nothing of this line is scored.
        """
        error = self._world.model_error
        if error is None:
            return False
        if not isinstance(error, AgentError):
            raise error
        self._give_up(node_error(error, blame(error, inside="agent")))
        return True

    async def _opened(self, session: Session) -> Callable[[], Awaitable[StopReason]]:
        """Return what runs the turn: its prompt, or the answer that it waits for."""
        ask, self._pending = self._pending, None
        if ask is None:
            text = self._opening = self._text()
            return partial(session.prompt, text)
        answer = self._replay.take(self._turn, ask)
        place = self._replay_log.append(Exchange(turn=self._turn, ask=ask, answer=answer))
        return partial(session.answer, answer or await self._of_user(place, ask))

    def _text(self) -> str:
        if self._current.prompt is not None:
            return self._current.prompt
        task = self._plan.task_of(self._current)
        return task.config.agent.prompt_prefix + task.instruction

    def _give_up(self, error: NodeError) -> None:
        """Note an end that is the agent's own, unless it was only repeating itself."""
        if not self._replay.live:
            raise SnapshotError(f"the child did not reach the fork again: {error.message}")
        self._graded = error

    async def _nudged(self) -> bool:
        """Add the user's follow-up to the schedule; false when there is none."""
        if self._turn >= self._plan.max_turns:
            return False
        with boundary("environment"):
            text = await self._world.user.nudge(self._journal.node(self.tip).steps)
        if text is None:
            return False
        nudge = LoweredTurn(scene=self._current.scene, role=self._current.role, prompt=text)
        self._schedule = (*self._schedule, nudge)
        return True

    def _stepped(self, step: Step) -> None:
        opening, self._opening = self._opening, None
        if self._end is not None:
            return
        calls = self._world.calls
        if not self._replay.live:
            self._attribution.skip(calls)
            return
        first = self._start.id != self._start.node and not self.has_steps
        node = self._start.id if first else self._journal.new_id()
        label = self._start.label if first else None
        told = self._attribution.step(step, self._current, opening, calls)
        try:
            self._journal.step(self.tip, node, told, label)
        except StoreError as error:
            self._interrupt(error)
        else:
            self.tip = node

    async def _asked(self, ask: Ask) -> Answer:
        """Answer an Ask; or never return, when the line ends at it."""
        if self._end is None:
            try:
                reply = await self._reply(ask)
            except BenchFlowError as error:
                # Raised cursor, it would surface as the session's failure.
                self._interrupt(error)
            else:
                if isinstance(reply, Answer):
                    return reply
                self._interrupt(reply)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    async def _reply(self, ask: Ask) -> Answer | Fork:
        answer: Answer | None = None
        forks = self._replay.live
        if not self._replay.live:
            answer = self._replay.take(self._turn, ask)
            # The end of a replay was forked already, but for a kept one that goes on here.
            forks = self._start.resumed and answer is None and self._replay.live
        if forks:
            fork = await self._forks.at_ask(self._cursor, ask)
            if fork is not None and not self._continues_after(fork):
                return fork
        place = self._replay_log.append(Exchange(turn=self._turn, ask=ask, answer=answer))
        return answer or await self._of_user(place, ask)

    async def _of_user(self, place: int, ask: Ask) -> Answer:
        with boundary("environment"):
            answer = await self._world.user.answer(ask, self._journal.node(self.tip).steps)
        self._replay_log.set_answer(place, answer)
        return answer

    def _interrupt(self, end: Fork | BenchFlowError) -> None:
        """Cut the running prompt short; its task gets to see nothing but a cancel."""
        if self._end is None:
            self._end = end
            self._scope.reschedule(asyncio.get_running_loop().time())


def _stopped(stop: StopReason | None) -> NodeError:
    return NodeError(
        boundary="agent",
        type="StopReason",
        message=f"the agent ended its turn with {stop!r}",
        hint="the node was graded on what the agent left behind",
    )
