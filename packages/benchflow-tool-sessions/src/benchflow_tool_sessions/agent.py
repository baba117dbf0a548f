"""An agent whose turns are driven from outside. The kernel runs it like any other agent."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    ActivityHandler,
    AgentCapabilities,
    AgentError,
    AgentTimeoutError,
    BaseAgent,
    BaseSession,
    Observation,
    Role,
    Sandbox,
    Session,
    SessionSnapshot,
    Step,
    StepActivity,
    StopReason,
    ToolActivity,
    ToolCall,
    ToolStatus,
)
from benchflow_contracts.pausing import running_timeout

from .arguments import ToolError, checked_arguments, cleaned, cleaned_name, cut, title_of
from .driver import Driver, KeepOpenRequest, Request, SubmitRequest, ToolRequest
from .mcp_tools import McpTools
from .results import SUBMIT, ToolResult, ToolSpec
from .sandbox_tools import SPECS, SandboxTools, Tools

AGENT_NAME = "tool-session"
_KINDS = {"bash": "execute", "read_file": "read", "write_file": "edit"}
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
    """Runs the calls of one `Driver` in the sandbox of its rollout."""

    name = AGENT_NAME
    static_capabilities = AgentCapabilities(protocol="tool-calls")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Start the tools, and open the session."""
        del resume, log_dir
        limits = self._driver.limits
        tools: list[Tools] = [SandboxTools(sandbox, role, limits)]
        if role.mcp_servers:
            tools.append(await McpTools.start(sandbox, role, limits))
        return ToolTurns(sandbox, role, self._driver, tools)


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
        self, sandbox: Sandbox, role: Role, driver: Driver, tools: Sequence[Tools]
    ) -> None:
        super().__init__(sandbox, role)
        self._driver = driver
        self._tools = tools
        self._owners = {spec.name: each for each in tools for spec in each.specs}
        specs = [spec for each in tools for spec in each.specs]
        driver.tools, driver.sandbox = (*specs, SUBMIT_SPEC), sandbox
        self._on_activity: ActivityHandler | None = None

    def on_activity(self, handler: ActivityHandler) -> None:
        """Call `handler` at the start of each step and tool call, and at each result."""
        self._on_activity = handler

    async def run_turn(self, prompt: str) -> StopReason:
        """Run the caller's calls until it submits.

        Raises:
            AgentTimeoutError: The turn took too long, or the caller was silent for too long.
        """
        driver, limit = self._driver, self.role.timeout_sec
        driver.begin_turn(prompt)
        scope = running_timeout(limit)
        try:
            async with scope:
                stop = await self._serve()
        except TimeoutError as error:
            if not scope.expired():
                raise
            driver.end(f"the turn took more than {limit:g} s")
            raise AgentTimeoutError(driver.reason or "") from error
        except asyncio.CancelledError:
            driver.end(None)
            raise
        except BaseException as error:
            driver.end(f"{error!s:.300}" or type(error).__name__)
            raise
        if stop == "end_turn":
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
                now = time.time()
                self.add_step(self._step(now, message=request.message, stop_reason="end_turn"))
                return "end_turn"
            if await self._answer(request):
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
            self._driver.end(f"no call came for {limit:g} s")
            raise AgentTimeoutError(self._driver.reason or "") from error

    async def _answer(self, request: ToolRequest) -> bool:
        """Run a call and report its step; return whether it was the last one that may run."""
        driver, began = self._driver, time.time()
        if request.answer.cancelled():
            return False
        name = cleaned_name(request.name)
        try:
            arguments: Any = checked_arguments(request.arguments, driver.limits.input_bytes)
            fault = None
        except ToolError as error:
            arguments, fault = {}, error
        call = ToolCall(
            id=f"call-{len(self.steps) + 1}",
            title=cleaned(title_of(name, arguments)),
            kind=_KINDS.get(name, "other"),
            name=name,
            raw_input=arguments,
        )
        self._report(call, None)
        result = await self._result(name, arguments, fault)
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
        return Step(
            id=f"step-{len(self.steps) + 1}",
            role=self.role.name,
            skills=self.role.skills,
            message=message,
            tool_calls=() if call is None else (call,),
            observations=seen,
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
