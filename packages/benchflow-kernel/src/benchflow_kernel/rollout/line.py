"""A Line: one way through one world, up to its end or its fork."""

import asyncio
from collections.abc import Awaitable, Callable

from benchflow_contracts import (
    AgentProtocolError,
    AgentTimeoutError,
    Answer,
    Ask,
    BenchFlowError,
    Checkpointed,
    EnvironmentError_,
    NodeError,
    Session,
    SnapshotError,
    Step,
    StopReason,
    StoreError,
)

from benchflow_kernel.branch import Checkpoint, Exchange, Replay, can_fork, take_checkpoint
from benchflow_kernel.faults import boundary, node_error
from benchflow_kernel.scenes import LoweredTurn
from benchflow_kernel.world import Plan, World

from .journal import Journal
from .start import Fork, Start


class Line:
    """Runs the turns of one world and hangs its steps into the tree.

    With a branch policy, the line checkpoints its world at the start of every turn
    and gives checkpoints that it no longer needs to `discard`. `checkpoint` is the
    latest one; it outlives the line, because children may start from it.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        world: World,
        start: Start,
        discard: Callable[[Checkpoint], Awaitable[None]],
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._world = world
        self._start = start
        self._discard = discard
        self._schedule = start.schedule
        self._turn = 0 if start.checkpoint is None else start.checkpoint.turn
        self._replay = Replay(start.script)
        self._exchanges: list[Exchange] = []
        self._opening: str | None = None
        self._current = start.schedule[self._turn]
        self._prompting = False
        self._scope = asyncio.timeout(None)
        self._end: Fork | BenchFlowError | None = None
        self._graded: NodeError | None = None
        self.checkpoint = start.checkpoint
        self.tip = start.node

    @property
    def has_steps(self) -> bool:
        """Whether the line added a node of its own."""
        return self.tip != self._start.node

    async def execute(self) -> Fork | None:
        """Run all turns; return the fork when there was one.

        What the agent brings on itself is graded, and only noted at the tip: running
        out of time, a refusal, a full context. Whatever else goes wrong is raised, and
        such a line has no reward.

        Raises:
            BenchFlowError: A fault of the world, the agent's process or its protocol.
        """
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

    async def finish(self) -> str:
        """End the agents and return the leaf to be scored; no step is taken after this.

        Raises:
            AgentError: An agent cannot be ended.
            AgentProtocolError: A child made no step after its answer.
        """
        await self._world.sessions.aclose()
        if self._start.label is not None and not self.has_steps:
            raise AgentProtocolError("the agent made no step after the answer")
        if self._graded is not None:
            self._journal.failed(self.tip, self._graded)
        return self.tip

    async def _turns(self) -> Fork | None:
        while True:
            self._current = self._schedule[self._turn]
            await self._take_checkpoint()
            stop = await self._prompt(await self._session())
            if isinstance(self._end, Fork):
                return self._end
            if stop != "end_turn":
                return None
            self._replay.end_turn(self._turn)
            self._turn += 1
            if self._turn == len(self._schedule) and not await self._nudged():
                return None

    async def _session(self) -> Session:
        first = not self._world.sessions.any_opened
        if first:
            self._journal.phase(self._start.id, "connect")
        session = await self._world.sessions.get(
            self._world.sandbox, self._current.role, self._asked, self._stepped
        )
        if first:
            self._journal.phase(self._start.id, "execute")
        return session

    async def _prompt(self, session: Session) -> StopReason | None:
        """Run one prompt turn; `None` when it was cut short."""
        text = self._opening = self._text()
        late: AgentTimeoutError | None = None
        stop: StopReason | None = None
        self._prompting = True
        try:
            async with asyncio.timeout(None) as self._scope:
                with boundary("agent"):
                    stop = await session.prompt(text)
        except AgentTimeoutError as error:
            late = error
        except (TimeoutError, BenchFlowError):
            if self._end is None:
                raise
        self._prompting = False
        if isinstance(self._end, BenchFlowError):
            raise self._end
        if self._end is not None:
            return None
        if late is not None:
            self._give_up(node_error(late))
        elif stop != "end_turn":
            self._give_up(_stopped(stop))
        return stop

    def _text(self) -> str:
        if self._current.prompt is not None:
            return self._current.prompt
        return self._plan.task.config.agent.prompt_prefix + self._plan.task.instruction

    def _give_up(self, error: NodeError) -> None:
        """Note an end that is the agent's own, unless it was only repeating itself."""
        if not self._replay.live:
            raise SnapshotError(f"the child did not reach the fork again: {error.message}")
        self._graded = error

    async def _nudged(self) -> bool:
        """Add the user's follow-up to the schedule; false when there is none."""
        limit = max(len(self._plan.turns), self._plan.task.config.agent.max_turns)
        if self._turn >= limit:
            return False
        with boundary("environment"):
            text = await self._world.user.nudge(self._journal.node(self.tip).steps)
        if text is None:
            return False
        nudge = LoweredTurn(scene=self._current.scene, role=self._current.role, prompt=text)
        self._schedule = (*self._schedule, nudge)
        return True

    async def _take_checkpoint(self) -> None:
        inherited = self._start.checkpoint
        if self._plan.config.branch is None or not self._replay.live:
            return
        if inherited is not None and inherited.turn == self._turn:
            return
        seconds = self._plan.config.deadlines.provision
        taken = await take_checkpoint(self._world, self._turn, seconds)
        if taken is None:
            return  # the last one stands, and a fork replays the turns since
        old, self.checkpoint = self.checkpoint, taken
        self._exchanges.clear()
        self._journal.append(Checkpointed, node=self.tip, ref=taken.image.ref, layers=taken.layers)
        if old is not None and old is not inherited:
            await self._discard(old)

    def _stepped(self, step: Step) -> None:
        opening, self._opening = self._opening, None
        if self._end is not None or not self._replay.live:
            return
        first_of_child = self._start.label is not None and not self.has_steps
        node = self._start.id if first_of_child else self._journal.new_id()
        label = self._start.label if first_of_child else None
        try:
            self._journal.step(self.tip, node, self._attributed(step, opening), label)
        except StoreError as error:
            self._interrupt(error)
        else:
            self.tip = node

    def _attributed(self, step: Step, opening: str | None) -> Step:
        """Return the step with the turn's role and skills, and its prompt if it opens it."""
        role = self._current.role
        update: dict[str, object] = {}
        if step.role != role.name:
            update["role"] = role.name
        if step.skills != role.skills:
            update["skills"] = role.skills
        if step.prompt is None and opening is not None:
            update["prompt"] = opening
        return step.model_copy(update=update) if update else step

    async def _asked(self, ask: Ask) -> Answer:
        """Answer an Ask; or never return, when the line ends at it."""
        if self._end is None:
            try:
                reply = await self._reply(ask)
            except BenchFlowError as error:
                # Raised here, it would surface as the session's failure.
                self._interrupt(error)
            else:
                if isinstance(reply, Answer):
                    return reply
                self._interrupt(reply)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    async def _reply(self, ask: Ask) -> Answer | Fork:
        answer = None if self._replay.live else self._replay.take(self._turn, ask)
        place = len(self._exchanges)
        if answer is None and self._forks(ask):
            return self._fork(ask)
        self._exchanges.append(Exchange(turn=self._turn, ask=ask, answer=answer))
        if answer is None:
            with boundary("environment"):
                answer = await self._world.user.answer(ask, self._journal.node(self.tip).steps)
            self._exchanges[place] = Exchange(turn=self._turn, ask=ask, answer=answer)
        return answer

    def _forks(self, ask: Ask) -> bool:
        policy = self._plan.config.branch
        return (
            policy is not None
            and self._replay.live
            and can_fork(ask, policy.budget, self._start.depth)
        )

    def _fork(self, ask: Ask) -> Fork:
        step = self._journal.node(self.tip).step
        if step is None or step.ask is None or step.ask.id != ask.id:
            raise AgentProtocolError(f"the session did not end a step with ask {ask.id!r}")
        assert self.checkpoint is not None, "the first turn always has a checkpoint"
        return Fork(
            node=self.tip,
            ask=ask,
            turn=self._turn,
            checkpoint=self.checkpoint,
            schedule=self._schedule,
            exchanges=tuple(self._exchanges),
            depth=self._start.depth,
        )

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
