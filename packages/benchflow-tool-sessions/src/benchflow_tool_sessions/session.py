"""A session: one task, driven by tool calls, recorded and graded as a normal rollout."""

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    BenchFlowError,
    RolloutIdentity,
    Sandbox,
    SandboxProvider,
    Task,
    UsageError,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import RunResult, run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_kernel import Planes
from benchflow_kernel.errors import FidelityError
from benchflow_store import new_rollout_id

from .agent import AGENT_NAME, ToolAgent
from .arguments import ToolError, checked_arguments, cleaned
from .driver import BorrowedAction, Driver
from .forks import DriverTree
from .results import SUBMIT, Outcome, SessionLimits, ToolResult, ToolSpec

_logger = logging.getLogger(__name__)


class ToolSession:
    """Drives one rollout. Make one by `open_session` or a `SessionManager`.

    Calls run one at a time, in the order in which they come. Use a session on one event loop. The
    caller applies the task's limits on model calls: a session does not see the caller's model. It
    logs a warning with these limits.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        *,
        provider: SandboxProvider | None = None,
        limits: SessionLimits | None = None,
        jobs_dir: Path | None = None,
        identity: RolloutIdentity | None = None,
    ) -> None:
        if config.branch is not None:
            raise UsageError(
                "a tool session does not fork by a policy", hint="leave out the fork policy"
            )
        self.task = task
        self.rollout_id = new_rollout_id(task.id)
        """The id of the rollout, which is also the name of its directory."""
        self.id = self.rollout_id
        """The id of the rollout; that of a child of a fork has a number behind it."""
        self.limits = limits or SessionLimits()
        self.directory = None if jobs_dir is None else jobs_dir / self.rollout_id
        """The directory of the rollout's record, if there is one."""
        self._tree = DriverTree(self.limits)
        self._driver = self._tree.root
        branch = {"branch": self._tree.policy}
        self._config = config.with_agent(AGENT_NAME).model_copy(update=branch)
        self._provider = provider
        self._identity = identity
        self._order = asyncio.Lock()
        self._rollout: asyncio.Task[RunResult] | None = None

    async def start(self) -> None:
        """Start the rollout, and wait until its first prompt is there.

        Raises:
            BenchFlowError: The task, the configuration or the sandbox is wrong. Everything is
                torn down.
        """
        if limits := self.task.config.agent.model_limits:
            _logger.warning(
                "task %r has %s: the caller of the session must apply this, because the session"
                " does not see its model calls",
                self.task.id,
                ", ".join(limits),
            )
        # The session owns the task: `close` ends it. A group would wrap the caller's errors.
        self._rollout = rollout = asyncio.create_task(self._run())  # noqa: TID251
        rollout.add_done_callback(self._on_end)
        try:
            await self._driver.wait(lambda: self._driver.state != "starting")
        except BaseException:
            await self.close()
            raise
        if self._driver.turns == 0:
            result = await rollout
            error = result.record.error
            raise SessionStartError(
                f"the session of task {self.task.id!r} did not start:"
                f" {error.message if error else result.record.status}",
                hint=error.hint if error else None,
                retryable=error.retryable if error else None,
            )

    @property
    def prompt(self) -> str:
        """The prompt of the current turn: the instruction, or a later prompt of the task."""
        return self._driver.prompt

    @property
    def is_ended(self) -> bool:
        """Whether the session takes no further call."""
        return self._driver.state == "ended"

    @property
    def is_busy(self) -> bool:
        """Whether a call runs, or the result is graded."""
        return self._order.locked()

    @property
    def calls(self) -> int:
        """The number of tool calls that ended, without `submit`."""
        return self._driver.calls

    def lend_sandbox(self, on_turn_end: Callable[[], None]) -> Sandbox:
        """Return the sandbox, for a program that acts in it by itself.

        `on_turn_end` is called when the turn ends, before the result is graded. The borrower must
        not act after that. What the borrower does is graded. It is in the record if the borrower
        reports it by `begin_action` and `end_action`.

        Raises:
            SessionEndedError: The session takes no further call.
        """
        driver = self._driver
        if driver.sandbox is None or driver.state != "open":
            raise driver.ended_error()
        driver.on_turn_end = on_turn_end
        return driver.sandbox

    def begin_action(self, name: str, arguments: Mapping[str, Any]) -> BorrowedAction:
        """Note that the borrower of the sandbox acts. The action is one step of the record."""
        return self._driver.begin_action(name, arguments)

    def end_action(self, action: BorrowedAction, result: ToolResult) -> None:
        """Record the action with its result. An action that the end of the turn cuts has none."""
        self._driver.end_action(action, result)

    def keep_open(self) -> None:
        """Count as a call, so that a borrower's work is not taken for silence."""
        self._driver.keep_open()

    async def tools(self) -> Sequence[ToolSpec]:
        """Return the tools in a fixed order. The last one is `submit`."""
        return tuple(self._driver.tools)

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call a tool, and return its result.

        An unknown tool, wrong arguments and a failed tool are results with `is_error`. `submit`
        takes a `message`, waits for the verdict, and returns a result that is `finished`. If the
        task has another prompt, that prompt is the text of the result. A cancelled call runs to
        its end if it has begun.

        Raises:
            SessionEndedError: The session has ended, or ended during the call.
        """
        if name != SUBMIT:
            async with self._order:
                await self._next_turn()
                return await self._driver.call(name, {} if arguments is None else arguments)
        try:
            message = _message_of(arguments, self.limits.input_bytes)
        except ToolError as error:
            return ToolResult(str(error), is_error=True)
        outcome = await self.submit(message)
        if outcome is None:
            return ToolResult(self.prompt)
        return ToolResult("The work was submitted.", finished=True)

    async def submit(self, message: str = "") -> Outcome | None:
        """End the turn, wait for the verdict, and return the outcome.

        The result is None if the task has another prompt, which is in `prompt` then.

        Raises:
            SessionEndedError: The session has ended.
        """
        async with self._order:
            await self._next_turn()
            turn = self._driver.turns
            self._driver.submit(cleaned(message))
            rollout = self._started()

            def is_over() -> bool:
                return rollout.done() or self._driver.is_over

            await self._driver.wait(lambda: self._driver.turns > turn or is_over())
            if self._driver.turns > turn and not is_over():
                return None
        return await self.outcome()

    async def fork(self, n: int) -> "list[ToolSession]":
        """Fork the session between two calls into `n` sessions, and return them.

        This session has ended then. Each child continues from the same state in a sandbox of its
        own, and ends with its own verdict. The record is one tree. A child that could not begin has
        ended, and its outcome says why.

        Raises:
            UsageError: `n` is smaller than 2, or `SessionLimits.sessions` allows no fork.
            SessionLimitError: The rollout would have more sessions than its limit.
            ForkRefusedError: The world cannot be copied, or the rollout was not forked. The session
                continues.
            SessionEndedError: The session has ended.
        """
        # A fork that has begun is not cut by a cancellation of its caller.
        return await asyncio.shield(self._fork(n))

    async def _fork(self, n: int) -> "list[ToolSession]":
        async with self._order:
            await self._next_turn()
            drivers = await self._tree.fork(self._driver, n)
        return [self._child(number, driver) for number, driver in enumerate(drivers, 1)]

    def _child(self, number: int, driver: Driver) -> "ToolSession":
        """Return another session of the same rollout."""
        child = copy.copy(self)
        child.id = f"{self.id}-{number}"
        child._driver, child._order = driver, asyncio.Lock()  # noqa: SLF001 - of the same class
        return child

    async def outcome(self) -> Outcome:
        """Wait for the end of the rollout, and return its outcome. It can be read many times.

        A session that still takes calls has no end: submit first. A session that was forked ends
        when its last child ends, and its reward is the mean of theirs. A child of a fork does not
        wait for its siblings.
        """
        rollout = self._started()
        if self._driver.key is not None:
            await self._tree.wait_over(self._driver)
            outcome = self._tree.outcome_of(self._driver)
            is_whole = rollout.done() and not rollout.cancelled() and rollout.exception() is None
            return replace(outcome, result=rollout.result() if is_whole else None)
        await asyncio.wait({rollout})
        if rollout.cancelled():
            reason = self._driver.reason or "the session was closed"
            return Outcome(None, {}, reason, reason, None)
        if (error := rollout.exception()) is not None:
            return Outcome(None, {}, str(error), str(error), None)
        ended = None if self._driver.children else self._driver.reason
        return _outcome_of(rollout.result(), ended)

    async def close(self, reason: str = "the session was closed") -> None:
        """End the session without a verdict, unless it has one, and delete its sandbox.

        The record says `cancelled`. A child of a fork ends alone, and its node has an error. A
        session that was forked ends all its children. Idempotent.
        """
        rollout = self._rollout
        if rollout is None or rollout.done():
            return
        if self._tree.root.children:
            for leaf in self._driver.leaves:
                leaf.close(reason)
            await self._tree.wait_over(self._driver)
            if not self._tree.root.is_over:
                return
        else:
            self._driver.end(reason)
            rollout.cancel()
        await asyncio.wait({rollout})

    async def _run(self) -> RunResult:
        async with AsyncExitStack() as stack:
            provider = self._provider
            if provider is None:
                provider = await stack.enter_async_context(open_provider(self._config))
            limit = asyncio.timeout(self.limits.total_sec)
            try:
                async with limit:
                    try:
                        return await self._run_in(provider, self._config)
                    except FidelityError as error:
                        if self._config.branch is None or self._tree.has_begun:
                            raise
                        self._tree.refuse_forks(error)
                        alone = self._config.model_copy(update={"branch": None})
                        return await self._run_in(provider, alone)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                reason = f"the session took more than {self.limits.total_sec:g} s"
                self._tree.end(reason)
                raise SessionTimeoutError(reason) from error

    async def _run_in(self, provider: SandboxProvider, config: RunConfig) -> RunResult:
        return await run_in(
            provider,
            self.task,
            config,
            directory=self.directory,
            identity=self._identity,
            prepare=self._with_agent,
            rollout_id=self.rollout_id,
            subscribers=() if self.limits.sessions < 2 else (self._tree.receive,),
        )

    async def _next_turn(self) -> None:
        """Wait for the next prompt, if the caller of the last `submit` did not."""
        self._started()
        await self._driver.wait(lambda: self._driver.state in {"open", "ended"})

    def _with_agent(self, planes: Planes) -> Planes:
        return replace(planes, agents={AGENT_NAME: ToolAgent(self._tree, self.limits)})

    def _started(self) -> "asyncio.Task[RunResult]":
        if self._rollout is None:
            raise UsageError("the session was not started", hint="call start() first")
        return self._rollout

    def _on_end(self, rollout: "asyncio.Task[RunResult]") -> None:
        # Reading the error marks it as seen: the caller may never ask for the outcome.
        error = None if rollout.cancelled() else rollout.exception()
        self._tree.end(None if error is None else f"{error!s:.300}")


class SessionStartError(BenchFlowError):
    """A session did not start."""

    boundary = "sandbox"
    default_hint = "run the task with `bench run --agent oracle` to see why"


class SessionTimeoutError(BenchFlowError):
    """A session took longer than its limit."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "raise SessionLimits.total_sec"


@asynccontextmanager
async def open_session(
    task: str | Path | Task,
    config: RunConfig | None = None,
    *,
    provider: SandboxProvider | None = None,
    limits: SessionLimits | None = None,
    jobs_dir: str | Path | None = None,
    identity: RolloutIdentity | None = None,
) -> AsyncGenerator[ToolSession]:
    """Yield a session on a task, which is ready for calls. At the end everything is torn down.

    `config` is as for `benchflow.run`; its agent is replaced. Without `provider`, the session
    opens and closes a sandbox provider of its own. With `jobs_dir`, the rollout is recorded below
    it. `identity` is on the sandboxes.

    Raises:
        BenchFlowError: The task or the configuration is wrong, or the session did not start.
    """
    chosen = config or RunConfig()
    loaded = task if isinstance(task, Task) else runnable_task(task, chosen.adapter_options())
    session = ToolSession(
        loaded,
        chosen,
        provider=provider,
        limits=limits,
        jobs_dir=None if jobs_dir is None else Path(jobs_dir),
        identity=identity,
    )
    await session.start()
    try:
        yield session
    finally:
        await session.close()


def _message_of(arguments: Mapping[str, Any] | None, most_bytes: int) -> str:
    checked = checked_arguments({} if arguments is None else arguments, most_bytes)
    message = checked.pop("message", "")
    if not isinstance(message, str) or checked:
        raise ToolError("`submit` takes a text as `message`, and nothing else")
    return message


def _outcome_of(result: RunResult, reason: str | None) -> Outcome:
    record = result.record
    error = None if record.error is None else f"{record.error.type}: {record.error.message}"
    if reason is None and record.status != "completed" and error is not None:
        reason = error
    if record.reward is not None:
        return Outcome(record.reward, record.rewards or {}, None, reason, result)
    verdicts = (leaf.results.get("reward") for leaf in result.tree.leaves)
    why = next((verdict.counted().error for verdict in verdicts if verdict is not None), None)
    return Outcome(None, {}, why or error or record.status, reason, result)
