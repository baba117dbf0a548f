"""A branch run: one path through one world, up to its end or its fork."""

from collections.abc import Callable

from benchflow_contracts import (
    AgentProtocolError,
    AgentTimeoutError,
    BenchFlowError,
    CallBudget,
    Cause,
    EnvironmentError_,
    ReplayDivergedError,
    Usage,
    blame,
    expect_host,
)
from benchflow_contracts.pausing import running_timeout

from benchflow_kernel.branch import Checkpoint, Replay, ReplayLog, check_child, forks_at_calls
from benchflow_kernel.faults import boundary, node_error, run_beside_check
from benchflow_kernel.resolve import Plan
from benchflow_kernel.rollout.branch_start import BranchStart, Fork, Position
from benchflow_kernel.rollout.preflight import limits_itself
from benchflow_kernel.rollout.record import Journal
from benchflow_kernel.world import World

from .activity_recorder import ActivityRecorder
from .call_responder import CallResponder
from .callbacks import AskResponder, StepRecorder
from .fork_controller import ForkController, ForkServices
from .progress import BranchContext, BranchState, Interruption, Progress, count_answered
from .rollout_saver import RolloutSaver
from .state_recorder import StateRecorder
from .task_steps import TaskSteps
from .turn_runner import TurnRunner


class BranchRun:
    """Runs the turns of one world and adds its steps to the tree.

    The run asks the fork controller at the start of each turn and at each question. A fork of
    a `value` policy goes to `on_fork`, and the run continues. Any other fork ends the run.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        world: World,
        start: BranchStart,
        services: ForkServices,
        on_fork: Callable[[Fork], None],
    ) -> None:
        branch = BranchContext(plan, journal, world, start)
        progress = Progress(start, lambda: count_answered(world.calls))
        interruption = Interruption()
        position = start.position
        replay = _replay_of(position, progress)
        replay_log = ReplayLog(start.checkpoint, services.refs, answered=position.calls_before)
        states = StateRecorder(branch)
        activity = ActivityRecorder(branch, progress, replay, interruption)
        forks = ForkController(branch, services, replay_log, states, on_fork)
        saver = RolloutSaver(branch, services, forks.record_checkpoint)
        recorder = StepRecorder(branch, progress, replay, activity, interruption)
        responder = AskResponder(
            branch, progress, replay, replay_log, forks, saver, activity, interruption
        )
        calls = CallResponder(branch, progress, replay, recorder, forks, interruption)
        self._branch = branch
        self._replay = replay
        self._forks = forks
        self._saver = saver
        self._steps = TaskSteps(branch)
        self._states = states
        self._activity = activity
        self._turns = TurnRunner(
            branch, progress, replay, recorder, responder, calls, activity, interruption
        )
        self.progress = progress
        is_gated = position.call is not None or forks_at_calls(start.policy)
        world.watch_calls(activity.report_call, calls.admit if is_gated else None)

    async def open(self) -> None:
        """Make the world from the task, or from the checkpoint of the branch.

        Raises:
            BenchFlowError: The world is not ready, or an agent cannot continue in it.
        """
        start, world = self._branch.start, self._branch.world
        checkpoint = start.checkpoint
        if checkpoint is not None:
            self._branch.journal.enter_phase(start.id, "setup")
        world.setup()
        world.budget = self._remaining_budget()
        if world.outside is not None:
            world.outside.on_call(self._activity.report_world_call)
        if checkpoint is None:
            await world.open()
            return
        await self._restore(checkpoint)
        if checkpoint.live is not None:
            await self._turns.attach(checkpoint.live.sessions)

    async def execute(self) -> Fork | None:
        """Run all turns; return the fork if a fork ended the run.

        An end that the agent causes is graded, and the last node says why: a timeout, a
        refusal, a full context. Any other failure is raised, and the branch has no reward. In a
        task of several steps, each step but the last is graded here. Each step has the execute
        deadline to itself.

        Raises:
            BenchFlowError: The world, the agent's process or its protocol failed.
        """
        await self._steps.open(self.progress.task_step)
        while True:
            fork = await self._run_step()
            if fork is not None or not await self._next_step():
                return fork

    async def capture_end(self) -> Position | None:
        """Capture the end of the branch, so that a later branch can resume from there.

        The result is `None` if no branch will be compared with this one, or if this one ended
        early. The caller owns one reference to the checkpoint.
        """
        is_compared = self._branch.start.stop is not None
        if not is_compared or self._turns.early_end is not None or not self.has_steps:
            return None
        # A resumed branch starts in the agent phase.
        await self._branch.world.phases.enter_agent(self.progress.task_step)
        return await self._forks.capture_end(self.progress.cursor)

    async def save_end(self) -> None:
        """Save the world after its agents have ended, so that it can still be graded later."""
        cursor, ungraded_step = self.progress.cursor, self.progress.ungraded_step
        await self._saver.at_end(cursor, ungraded_step)
        await self._forks.save_end(cursor, ungraded_step)

    async def finish(self) -> str:
        """End the agents and return the leaf to be scored. No step is recorded after this.

        Raises:
            AgentError: An agent cannot be ended.
            AgentProtocolError: A child recorded no step.
            ReplayDivergedError: The agent did not make all recorded model calls.
        """
        await self._end_agents()
        unplayed = self._branch.world.unplayed
        if unplayed:
            raise ReplayDivergedError(
                f"the agent ended without {unplayed} of the recorded model calls"
            )
        return self.progress.tip

    async def aclose(self) -> None:
        """Release the checkpoints of this branch. Idempotent."""
        await self._forks.aclose()

    @property
    def has_steps(self) -> bool:
        """Whether the branch added a node of its own."""
        return self.progress.tip != self._branch.start.node

    def cause_of(self, error: BenchFlowError) -> Cause:
        """Return the cause of `error`: the host, if it ended processes of the agent's sandbox."""
        acted = self.progress.has_acted
        cause = blame(error, inside="agent" if acted else "task")
        if not acted or cause.by not in {"agent", "unknown"}:
            return cause
        try:
            expect_host(self._branch.world.sandbox)
        except BenchFlowError as failed:
            return Cause(by="host", what=f"{cause.what}; {failed}")
        return cause

    def _remaining_budget(self) -> CallBudget | None:
        """Return what the path to this branch left of the task's limits on model calls."""
        plan, start = self._branch.plan, self._branch.start
        agent = plan.task.config.agent
        of_gateway = (
            {}
            if limits_itself(plan)
            else {
                "messages": agent.max_messages,
                "cost_usd": agent.max_cost_usd,
            }
        )
        if not any(
            limit is not None for limit in (agent.max_calls, agent.max_tokens, *of_gateway.values())
        ):
            return None
        # The route counts the calls of its own record.
        own = f"{start.id}."
        steps = [
            step
            for step in self._branch.journal.node(start.node).steps
            if not any(call.startswith(own) for call in step.model_calls)
        ]
        calls = sum(len(step.model_calls) for step in steps)
        usages = [step.usage for step in steps if step.usage is not None and step.model_calls]
        earlier = Usage(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
        )
        tokens = earlier.input_tokens + earlier.output_tokens
        return CallBudget.model_validate(
            {
                "calls": _remaining(agent.max_calls, calls),
                "tokens": _remaining(agent.max_tokens, tokens),
                "earlier": earlier,
                **of_gateway,
            }
        )

    async def _restore(self, checkpoint: Checkpoint) -> None:
        start, world = self._branch.start, self._branch.world
        await world.open(
            checkpoint.image,
            live=checkpoint.live,
            state=checkpoint.state,
            outside=checkpoint.outside,
            replay=start.position.calls,
            upload_agent_files=checkpoint.from_disk,
            step=self.progress.task_step,
        )
        if checkpoint.live is not None:
            await world.evict(checkpoint.live.unused_agents)
        connect = self._connect if self._connects_early(checkpoint) else None
        await run_beside_check(check_child(world, checkpoint), connect)
        await world.reseed(self._branch.plan.fork_seed(start.id))

    def _connects_early(self, checkpoint: Checkpoint) -> bool:
        """Return whether the first session opens while the restored world is still checked.

        It does not if the branch may fork before, or if the agent brings tools: they could
        change the world at once.
        """
        return (
            checkpoint.live is None
            and not self._branch.start.resumed
            and self.progress.has_turns
            and not self.progress.current.role.mcp_servers
        )

    async def _connect(self) -> None:
        await self._turns.connect()

    async def _run_step(self) -> Fork | None:
        """Run the turns of one step of the task within the execute deadline."""
        plan = self._branch.plan
        seconds = plan.turn_limit
        problem, hint = f"the turns did not end within {seconds:g} s", "raise the execute deadline"
        if seconds < plan.config.deadlines.execute:
            problem = f"the deadline of the rollout passed after {plan.config.deadline_sec:g} s"
            hint = "raise deadline_sec"
        if seconds <= 0:
            self._turns.end_early(node_error(AgentTimeoutError(problem, hint=hint)))
            return None
        scope = running_timeout(seconds)
        try:
            async with scope:
                self._states.deadline = scope
                return await self._run_turns()
        except TimeoutError:
            if not scope.expired():
                raise
        if self.progress.state is not BranchState.PROMPTING:
            raise EnvironmentError_(f"{problem}, and it was not the agent's turn", hint=hint)
        self.progress.state = BranchState.IDLE
        self._turns.end_early(node_error(AgentTimeoutError(problem, hint=hint)))
        return None

    async def _run_turns(self) -> Fork | None:
        progress, step = self.progress, self.progress.task_step
        while progress.has_turns or await self._add_nudge():
            if progress.schedule[progress.turn].task_step != step:
                return None
            progress.go_to(progress.turn)
            await self._branch.world.phases.enter_agent(step)
            fork = await self._fork_before_turn()
            if fork is not None and not self._forks.continues_after(fork):
                return fork
            if self._replay.is_finished:
                await self._states.at_turn(progress.tip)
            end = await self._turns.run()
            if isinstance(end, Fork):
                return end
            if end != "end_turn" or self._is_over:
                return None
            progress.turn += 1
            if progress.turn == self._branch.start.stop:
                return None
        return None

    @property
    def _is_over(self) -> bool:
        """Whether the episode of a world outside the sandbox is over, so that no turn follows."""
        outside = self._branch.world.outside
        return outside is not None and outside.terminal

    async def _fork_before_turn(self) -> Fork | None:
        cursor, ask = self.progress.cursor, self._turns.restored_ask
        if ask is not None:
            return await self._forks.at_restored_ask(cursor, ask)
        if self._turns.at_call or not self._replay.is_finished:
            return None
        await self._saver.at_turn(cursor)
        return await self._forks.at_turn(cursor)

    async def _add_nudge(self) -> bool:
        """Add the user's next prompt to the schedule; return whether there is one."""
        progress = self.progress
        if progress.turn >= self._branch.plan.max_turns:
            return False
        steps = self._branch.journal.node(progress.tip).steps
        with boundary("environment"):
            text = await self._branch.world.user.nudge(steps)
        if text is None:
            return False
        progress.add_prompt(text)
        return True

    async def _next_step(self) -> bool:
        """Grade the task's step and prepare the next one; return whether a step follows."""
        stop = self._branch.start.stop
        following = self.progress.next_step_turn(stop)
        if following is None:
            return False
        if not await self._close_step():
            self.progress.end()
            return False
        self.progress.go_to(following)
        await self._steps.enter(self.progress.task_step, self.progress.tip)
        return following != stop

    async def _close_step(self) -> bool:
        """Grade the step that ended; return whether another step may follow."""
        if self.progress.state is BranchState.REPLAYED:
            # The tree has the verdict already, and the recorded branch passed this step.
            await self._branch.world.sessions.aclose()
            self.progress.state = BranchState.READY
            return True
        await self._end_agents()
        self._turns.early_end = None
        self.progress.state = BranchState.READY
        return await self._steps.close(self.progress.task_step, self.progress.tip)

    async def _end_agents(self) -> None:
        await self._branch.world.sessions.aclose()
        await self._branch.world.phases.leave_agent()
        if self._branch.start.label is not None and not self.has_steps:
            raise AgentProtocolError("the agent recorded no step after the fork")
        self._turns.check_model()
        if self._turns.early_end is not None:
            self._branch.journal.record_failure(self.progress.tip, self._turns.early_end)
        await self._branch.world.files.save_shared()


def _replay_of(position: Position, progress: Progress) -> Replay:
    """Return the replay from the checkpoint of a position to the position."""
    checkpoint = position.checkpoint
    is_there = checkpoint is not None and checkpoint.at_call
    return Replay(
        position.script,
        since=progress.turn,
        until=position.turn,
        call=None if is_there else position.call,
    )


def _remaining(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)
