"""Our agents as an agent server of NeMo Gym: `/run` plays a row and returns it with its reward.

Source of the format: nemo-gym 0.4.0, `SimpleResponsesAPIAgent` of
`nemo_gym.base_responses_api_agent`.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    ModelCall,
    RolloutIdentity,
    SandboxProvider,
    Step,
    Task,
    UsageError,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import RunResult, run_in
from benchflow_store import new_rollout_id, read_model_calls
from litestar import Litestar, post
from litestar.datastructures import State

from .hostile_json import as_object
from .responses import (
    TOKEN_FIELDS,
    function_call,
    make_response,
    message_item,
    reasoning_item,
    tool_output,
)
from .server_parts import Call, TaskIndex, make_app, read_object, scored_row

_SCOPE: Final = "nemo-gym"


@dataclass(frozen=True, slots=True)
class AgentServer:
    """What the routes need: the tasks by id, how to run them, and where."""

    provider: SandboxProvider
    tasks: TaskIndex
    config: RunConfig
    jobs_dir: Path
    slots: asyncio.Semaphore

    async def play(self, task: Task) -> tuple[RunResult, dict[str, Any]]:
        """Run a task; return the result and its response."""
        async with self.slots:
            result = await run_in(
                self.provider,
                task,
                self.config,
                directory=self.jobs_dir / new_rollout_id(task.id),
                identity=RolloutIdentity(scope=_SCOPE),
            )
        directory = result.directory
        calls = {} if directory is None else await asyncio.to_thread(read_model_calls, directory)
        return result, rollout_response(result, calls)


def create_agent_app(
    tasks: Sequence[Task],
    config: RunConfig,
    *,
    jobs_dir: Path,
    slots: int = 4,
    provider: SandboxProvider | None = None,
) -> Litestar:
    """Return the application of an agent server. The rollouts are recorded below `jobs_dir`.

    The routes have no authentication of their own, as those of NeMo Gym: listen on an address that
    only its servers reach.

    Args:
        tasks: The tasks. A row names one in `verifier_metadata.task_id`.
        config: What each rollout is run with.
        jobs_dir: The directory of the rollouts.
        slots: The number of rollouts that run at once.
        provider: The provider of sandboxes (default: the one of the configuration).

    Raises:
        UsageError: The configuration forks rollouts, or two tasks have one id.
    """
    if config.branch is not None:
        raise UsageError("a row of NeMo Gym is one rollout", hint="leave out the fork policy")
    index = TaskIndex(tasks)

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        async with open_provider(config) if provider is None else nullcontext(provider) as opened:
            app.state["server"] = AgentServer(
                opened, index, config, jobs_dir, asyncio.Semaphore(slots)
            )
            yield

    return make_app([run_row, respond], lifespan)


@post("/run", status_code=200)
async def run_row(request: Call, state: State) -> dict[str, Any]:
    """Play the task of a row; return the row with its response and reward.

    A rollout without a reward has the status 503, and never a reward of 0.
    """
    row, server = await read_object(request), _server(state)
    result, response = await server.play(server.tasks.find(row.get("verifier_metadata")))
    record = result.record
    why = record.error.message if record.error else record.status
    answered = {**row, "response": response}
    return scored_row(answered, record.rollout_id, record.reward, record.rewards or {}, why)


@post("/v1/responses", status_code=200)
async def respond(request: Call, state: State) -> dict[str, Any]:
    """Play the task that `metadata.task_id` names; return the response of the agent."""
    metadata, server = (await read_object(request)).get("metadata"), _server(state)
    _, response = await server.play(server.tasks.find(metadata, "metadata"))
    return response


def rollout_response(result: RunResult, calls: Mapping[str, ModelCall]) -> dict[str, Any]:
    """Return the response of a rollout: the items of its first leaf, and the tokens of all."""
    leaf = result.tree.leaves[0]
    used = [calls[name] for step in leaf.steps for name in step.model_calls if name in calls]
    tokens = (
        sum(call.usage.input_tokens for call in used),
        sum(call.usage.output_tokens for call in used),
    )
    model = next((call.model for call in used if call.model), "benchflow")
    began = leaf.steps[0].started_at if leaf.steps else 0.0
    items = step_items(leaf.steps, calls)
    return make_response(items, model=model, usage=tokens, created_at=began)


def step_items(steps: Sequence[Step], calls: Mapping[str, ModelCall]) -> list[dict[str, Any]]:
    """Return the items of steps: reasoning, message, tool calls, and their results.

    The last item that the model sampled in a step has the token ids and log-probabilities of its
    call, as NeMo Gym's own model servers place them. A step gets none if it has more than one call
    of the agent, or if the log-probabilities of its call are not complete.
    """
    items: list[dict[str, Any]] = []
    for step in steps:
        sampled: list[dict[str, Any]] = []
        if step.reasoning:
            sampled.append(reasoning_item(step.reasoning))
        if step.message:
            sampled.append(message_item(step.message))
        sampled += [
            function_call(call.id, call.name or call.title, as_object(call.raw_input))
            for call in step.tool_calls
        ]
        if sampled:
            sampled[-1] |= _tokens_of([calls[name] for name in step.model_calls if name in calls])
        items += sampled
        items += [tool_output(seen.tool_call_id, seen.content) for seen in step.observations]
    return items


def _tokens_of(calls: Sequence[ModelCall]) -> dict[str, Any]:
    main = [call for call in calls if call.purpose == "main" and call.error is None]
    if len(main) != 1:
        return {}
    (call,) = main
    prompt, completion, logprobs = call.prompt_token_ids, call.completion_token_ids, call.logprobs
    if prompt is None or completion is None or logprobs is None:
        return {}
    if not completion or len(completion) != len(logprobs):
        return {}
    return dict(zip(TOKEN_FIELDS, (list(prompt), list(completion), list(logprobs)), strict=True))


def _server(state: State) -> AgentServer:
    server: AgentServer = state["server"]
    return server
