"""An agent of BenchFlow as an agent of Inspect."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# pyright: basic, reportMissingImports=false

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchflow_contracts import (
    Answer,
    Ask,
    BenchFlowError,
    Endpoint,
    Session,
    Step,
    StopReason,
    UsageError,
)
from inspect_ai.agent import Agent, AgentState, agent
from inspect_ai.log import transcript
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ModelOutput,
    get_model,
)
from inspect_ai.tool import ToolCall
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from benchflow_adapters_inspect.sandbox.environment import BenchflowSandboxEnvironment
from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig

from .model_server import ModelServer


def bf_sandbox(agent: str | None = None, **settings: object) -> SandboxEnvironmentSpec:
    """Return the sandbox of a task, prepared for `agent`. `settings` are those of the config."""
    config = BenchflowSandboxConfig.model_validate({"agent": agent, **settings})
    return SandboxEnvironmentSpec("benchflow", config)


@agent
def bf_agent(model: str | None = None) -> Agent:
    """Run the agent of the sample's sandbox on the last message of the user.

    The agent's model is `model`, by default that of the evaluation. Each of its calls is a model
    event of the sample, and counts against the sample's limits. The agent's own limit is the one
    of Inspect: it runs until its turn ends.

    Raises:
        UsageError: The sandbox is not of the provider `benchflow`, or has no agent.
        AgentError: The agent failed.
    """

    async def execute(state: AgentState) -> AgentState:
        environment = sandbox().as_type(BenchflowSandboxEnvironment)
        setup = environment.opened.setup
        if setup is None:
            raise UsageError(
                "the sandbox has no agent",
                hint="use sandbox=bf_sandbox('policy'), or set `agent` in benchflow-sandbox.toml",
            )
        async with AsyncExitStack() as stack:
            server = ModelServer(get_model(model))
            await stack.enter_async_context(server.serve())
            await setup.route.swap(Endpoint(url=f"{server.url}/v1"))
            session = await setup.agent.connect(environment.sandbox, setup.role)
            stack.push_async_callback(session.aclose)
            session.on_ask_user(_decline)
            try:
                stop = await _prompt(session, state.messages[-1].text, server)
            finally:
                # Also for a sample that a limit ends: its scorers read the state.
                _set_result(state, session.steps, server)
            report = {"agent": setup.agent.name, "stop_reason": stop, "steps": len(session.steps)}
            transcript().info(report, source="benchflow")
        return state

    return execute


async def _decline(ask: Ask) -> Answer:  # noqa: ARG001
    return Answer(outcome="declined")


async def _prompt(session: Session, text: str, server: ModelServer) -> StopReason:
    """Run a turn; end it when Inspect refuses a model call, with the error of Inspect."""
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(_outcome(session, text))
        failed = group.create_task(server.failed.wait())
        await asyncio.wait({turn, failed}, return_when=asyncio.FIRST_COMPLETED)
        turn.cancel()
        failed.cancel()
    if server.error is not None:
        raise server.error
    outcome = turn.result()
    if isinstance(outcome, BenchFlowError):
        raise outcome
    return outcome


async def _outcome(session: Session, text: str) -> StopReason | BenchFlowError:
    """Run a turn, and return its error, which a task group would wrap."""
    try:
        return await session.prompt(text)
    except BenchFlowError as error:
        return error


def _set_result(state: AgentState, steps: Sequence[Step], server: ModelServer) -> None:
    if server.output is not None:
        state.messages, state.output = server.messages, server.output
        return
    messages = [message for step in steps for message in _messages(step)]
    state.messages.extend(messages)
    last = next((m for m in reversed(messages) if isinstance(m, ChatMessageAssistant)), None)
    if last is not None:
        state.output = ModelOutput.from_message(last)


def _messages(step: Step) -> list[ChatMessage]:
    calls = [
        ToolCall(id=call.id, function=call.name or call.kind, arguments=_arguments(call.raw_input))
        for call in step.tool_calls
    ]
    answer = ChatMessageAssistant(content=step.message, tool_calls=calls or None)
    results = [
        ChatMessageTool(content=each.content, tool_call_id=each.tool_call_id)
        for each in step.observations
    ]
    return [answer, *results]


def _arguments(raw_input: object) -> dict[str, object]:
    return dict(raw_input) if isinstance(raw_input, dict) else {"input": raw_input}
