"""An agent whose turns are driven from outside. The kernel runs it like any other agent."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    ActivityHandler,
    AgentCapabilities,
    AgentError,
    AgentTimeoutError,
    Answer,
    Ask,
    BaseAgent,
    BaseSession,
    Observation,
    Role,
    Sandbox,
    Session,
    SessionSnapshot,
    SessionState,
    Step,
    StepActivity,
    StopReason,
    ToolActivity,
    ToolCall,
    ToolStatus,
)
from benchflow_contracts.pausing import running_timeout

from .arguments import ToolError, checked_arguments, cleaned, cleaned_name, cut, title_of
from .driver import (
    BorrowedAction,
    Driver,
    ForkRequest,
    KeepOpenRequest,
    Request,
    SubmitRequest,
    ToolRequest,
)
from .forks import DriverTree
from .mcp_tools import McpTools
from .results import SUBMIT, SessionLimits, ToolResult, ToolSpec
from .sandbox_tools import SPECS, SandboxTools, Tools

AGENT_NAME = "tool-session"
_KINDS = {
    "bash": "execute",
    "read_file": "read",
    "write_file": "edit",
    "exec": "execute",
    "download": "read",
    "upload": "edit",
}
SUBMIT_SPEC = ToolSpec(
    SUBMIT,
    "End the work. The result is graded, and no further call is possible.",
    {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "The final answer."}},
        "additionalProperties": False,
    },
)
BASE_TOOLS = (*SPECS, SUBMIT_SPEC)
"""The tools of every session. A task may have more."""


class ToolAgent(BaseAgent):
    """Runs the calls of each driver of a tree in the sandbox of its branch."""

    name = AGENT_NAME
    static_capabilities = AgentCapabilities(
        protocol="tool-calls", session_snapshot="files", acts_by="caller"
    )

    def __init__(self, tree: DriverTree, limits: SessionLimits) -> None:
        self._tree = tree
        self._limits = limits

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Start the tools, and open the session. A child of a fork waits for `answer`."""
        del log_dir
        mcp = None
        if role.mcp_servers:
            mcp = await McpTools.start(sandbox, role, self._limits)
        turns = ToolTurns(sandbox, role, self._tree, self._limits, mcp)
        if resume is not None:
            turns.ask, turns.earlier_steps = resume.ask, resume.steps
        return turns

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Continue in a child of a live snapshot."""
        del log_dir
        mcp = None
        if state.data:
            mcp = await McpTools.attach(sandbox, state.data, self._limits)
        return ToolTurns(sandbox, role, self._tree, self._limits, mcp, state)


class _IdleAgent(BaseAgent):
    """Refuses to run without a caller: only `open_session` drives this agent."""

    name = AGENT_NAME

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Refuse."""
        del sandbox, role, resume, log_dir
        raise AgentError(
            f"agent {AGENT_NAME!r} acts by the calls of another program",
            hint="use `benchflow_tool_sessions.open_session`, or choose another agent",
        )


def idle_agent() -> BaseAgent:
    """Return the agent of the registry, which names recorded sessions and cannot run alone."""
    return _IdleAgent()


class ToolTurns(BaseSession):
    """One step for each tool call, and one for the last message of a turn."""

    def __init__(
        self,
        sandbox: Sandbox,
        role: Role,
        tree: DriverTree,
        limits: SessionLimits,
        mcp: McpTools | None,
        state: SessionState | None = None,
    ) -> None:
        super().__init__(sandbox, role)
        self._tree = tree
        self._mcp = mcp
        base = SandboxTools(sandbox, role, limits)
        self._tools: list[Tools] = [base] if mcp is None else [base, mcp]
        self._owners = {spec.name: each for each in self._tools for spec in each.specs}
        self.ask: Ask | None = None
        """The request to fork that is open."""
        self.earlier_steps = 0
        """The steps of the parent, if the session resumes from files."""
        self._answer: Answer | None = None
        """The answer that the next step follows."""
        self._prompt: str | None = None
        """The prompt that the next step follows."""
        if state is not None:
            self._steps, self.ask = list(state.steps), state.ask
        self._on_activity: ActivityHandler | None = None

    def on_activity(self, handler: ActivityHandler) -> None:
        """Call `handler` at the start of each step and tool call, and at each result."""
        self._on_activity = handler

    async def run_turn(self, prompt: str) -> StopReason:
        """Run the caller's calls until it submits.

        Raises:
            AgentTimeoutError: The turn took too long, or the caller was silent for too long.
        """
        self._prompt = prompt
        return await self._run(prompt)

    async def answer(self, answer: Answer) -> StopReason:
        """Continue as the child of a fork that `answer` names."""
        ask, self.ask = self.ask, None
        assert ask is not None, "only a child of a fork is answered"
        self._answer = answer
        driver = self._tree.bind(self.sandbox.id, ask, answer)
        return await self._run(driver.prompt)

    async def snapshot(self) -> SessionSnapshot:
        """Describe the session between two calls. The tools keep nothing that files do not have."""
        return SessionSnapshot(
            agent=AGENT_NAME,
            session_id=self.id,
            cwd=self.sandbox.spec.workdir,
            steps=self.earlier_steps + len(self._steps),
            ask=self.ask,
        )

    async def capture(self) -> SessionState:
        """Return the session with the program of its MCP servers, if there is one."""
        data = {} if self._mcp is None else self._mcp.capture()
        return SessionState(
            agent=AGENT_NAME,
            session_id=self.id,
            process_id=str(data.get("process", "")),
            ask=self.ask,
            steps=tuple(self._steps),
            data=data,
        )

    @property
    def _driver(self) -> Driver:
        return self._tree.of_sandbox(self.sandbox.id)

    async def _run(self, prompt: str) -> StopReason:
        driver = self._driver
        specs = [spec for each in self._tools for spec in each.specs]
        driver.tools, driver.sandbox = (*specs, SUBMIT_SPEC), self.sandbox
        driver.begin_turn(prompt)
        try:
            async with driver.closable():
                stop = await self.limit_turn(self._serve())
        except AgentTimeoutError as error:
            self._record_cut_actions()
            driver.end(str(error))
            raise
        except asyncio.CancelledError:
            driver.end("it was forked, and its children continue" if driver.children else None)
            raise
        except BaseException as error:
            driver.end(f"{error!s:.300}" or type(error).__name__)
            raise
        if stop == "cancelled":
            self._record_cut_actions()
            self.add_step(self._step(time.time(), stop_reason=stop))
        if stop in {"end_turn", "cancelled"}:
            driver.end_turn()
        return stop

    async def aclose(self) -> None:
        """End the tools' processes."""
        await super().aclose()
        for tools in self._tools:
            await tools.aclose()

    async def _serve(self) -> StopReason:
        while True:
            request = await self._next_request()
            if isinstance(request, KeepOpenRequest):
                continue
            if isinstance(request, SubmitRequest):
                self._record_cut_actions()
                now = time.time()
                self.add_step(self._step(now, message=request.message, stop_reason="end_turn"))
                return "end_turn"
            if isinstance(request, BorrowedAction):
                self._record(request)
            elif isinstance(request, ForkRequest):
                await self._fork(request)
            elif await self._call(request):
                return "max_turn_requests"

    async def _next_request(self) -> Request:
        limit = self.role.idle_timeout_sec
        idle = running_timeout(limit)
        try:
            async with idle:
                return await self._driver.next_request()
        except TimeoutError as error:
            if not idle.expired():
                raise
            self._record_cut_actions()
            self._driver.end(f"no call came for {limit:g} s")
            raise AgentTimeoutError(self._driver.reason or "") from error

    async def _fork(self, request: ForkRequest) -> None:
        """End a step with a request to fork. If it is granted, the turn is cancelled."""
        if request.answer.done():
            return
        assert self.ask_user is not None, "the kernel sets it"
        self._record_cut_actions()
        self.ask = request.ask
        self.add_step(self._step(time.time(), ask=request.ask))
        try:
            await self.ask_user(request.ask)
        except asyncio.CancelledError:
            if not request.answer.done():
                request.answer.set_result(True)
            raise
        self.ask = None
        if not request.answer.done():
            request.answer.set_result(False)

    async def _call(self, request: ToolRequest) -> bool:
        """Run a call and report its step; return whether it was the last one that may run."""
        driver, began = self._driver, time.time()
        if request.answer.cancelled():
            return False
        call, fault = self._tool_call(request.name, request.arguments)
        self._report(call, None)
        result = await self._result(str(call.name), dict(call.raw_input or {}), fault)
        driver.calls += 1
        is_last = driver.limits.calls is not None and driver.calls >= driver.limits.calls
        self._report(call, result)
        step = self._step(began, call=call, result=result)
        if is_last:
            step = step.model_copy(update={"stop_reason": "max_turn_requests"})
        self.add_step(step)
        if not request.answer.done():
            request.answer.set_result(replace(result, finished=is_last))
        if is_last:
            driver.end(f"the limit of {driver.limits.calls} calls is reached")
        return is_last

    def _tool_call(self, name: str, given: Mapping[str, Any]) -> tuple[ToolCall, ToolError | None]:
        """Return a call for the record, and what is wrong with its arguments."""
        name = cleaned_name(name)
        try:
            arguments: Any = checked_arguments(given, self._driver.limits.input_bytes)
            fault = None
        except ToolError as error:
            arguments, fault = {}, error
        call = ToolCall(
            id=f"call-{self.earlier_steps + len(self._steps) + 1}",
            title=cleaned(title_of(name, arguments)),
            kind=_KINDS.get(name, "other"),
            name=name,
            raw_input=arguments,
        )
        return call, fault

    def _record(self, action: BorrowedAction) -> None:
        """Add the step of an action of a borrower."""
        call, _ = self._tool_call(action.name, action.arguments)
        result = action.result
        if result is None:
            result = ToolResult("[cut by the end of the turn]", is_error=True)
        text, is_cut = cut(cleaned(result.text), self._driver.limits.output_chars)
        result = replace(result, text=text, truncated=result.truncated or is_cut)
        self.add_step(self._step(action.began, call=call, result=result))

    def _record_cut_actions(self) -> None:
        """Add the steps of actions that run when the turn ends."""
        actions = list(self._driver.running_actions)
        self._driver.running_actions.clear()
        for action in actions:
            self._record(action)

    async def _result(
        self, name: str, arguments: dict[str, Any], fault: ToolError | None
    ) -> ToolResult:
        tools, limits = self._owners.get(name), self._driver.limits
        names = ", ".join(spec.name for spec in self._driver.tools)
        message = f"unknown tool {name!r}; the tools are {names}"
        if fault is not None:
            message = str(fault)
        elif tools is not None:
            try:
                return await tools.call(name, arguments)
            except ToolError as error:
                message = str(error)
        text, is_cut = cut(cleaned(message), limits.output_chars)
        return ToolResult(text, is_error=True, truncated=is_cut)

    def _step(
        self,
        began: float,
        *,
        call: ToolCall | None = None,
        result: ToolResult | None = None,
        message: str = "",
        ask: Ask | None = None,
        stop_reason: StopReason | None = None,
    ) -> Step:
        seen: tuple[Observation, ...] = ()
        if call is not None and result is not None:
            status: ToolStatus = "failed" if result.is_error else "completed"
            seen = (
                Observation(
                    tool_call_id=call.id, status=status, content=result.text, raw_output=result.data
                ),
            )
        answer, self._answer = self._answer, None
        prompt, self._prompt = self._prompt, None
        return Step(
            id=f"step-{self.earlier_steps + len(self._steps) + 1}",
            role=self.role.name,
            prompt=prompt,
            skills=self.role.skills,
            message=message,
            tool_calls=() if call is None else (call,),
            observations=seen,
            answer=answer,
            ask=ask,
            stop_reason=stop_reason,
            started_at=began,
            finished_at=max(began, time.time()),
        )

    def _report(self, call: ToolCall, result: ToolResult | None) -> None:
        if self._on_activity is None:
            return
        if result is None:
            self._on_activity(StepActivity())
            status: ToolStatus = "in_progress"
        else:
            status = "failed" if result.is_error else "completed"
        self._on_activity(ToolActivity(call.id, call.title, call.name, call.kind, status))
