"""Solvers of an Inspect task, run on one sample in a sandbox of BenchFlow.

Private functions of inspect-ai 0.3.285: `_eval.task.run.resolve_plan`,
`_eval.task.generate.task_generate`, `solver._fork.set_task_generate`, `solver._chain.unroll`,
`solver._plan.Plan`, `solver._task_state.sample_state`, `log._samples.active_sample`,
`_util.exception.TerminateSampleError`, `agent._acp.transport._acp_live_active`, and the limits of
`util._limit`.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from copy import copy
from typing import Any, Literal

from benchflow_contracts import (
    AgentError,
    BenchFlowError,
    Endpoint,
    EnvironmentError_,
    Sandbox,
    TaskError,
)
from inspect_ai import Task
from inspect_ai._eval.task.generate import task_generate
from inspect_ai._eval.task.run import resolve_plan
from inspect_ai._util.exception import TerminateSampleError
from inspect_ai._util.notgiven import NOT_GIVEN
from inspect_ai.agent._acp.transport import _acp_live_active
from inspect_ai.log import transcript
from inspect_ai.log._samples import active_sample
from inspect_ai.model import Model, get_model
from inspect_ai.solver import TaskState
from inspect_ai.solver._chain import unroll
from inspect_ai.solver._fork import set_task_generate
from inspect_ai.solver._plan import Plan
from inspect_ai.solver._task_state import sample_state
from inspect_ai.util import LimitExceededError
from inspect_ai.util._limit import time_limit, turn_limit, working_limit

from benchflow_adapters_inspect.sandbox.pool import OpenSandbox

from .gateway_model import gateway_model, tool_results
from .loading import load_inspect_task
from .sample_folder import SampleFolder
from .sample_run import STATE_KEY, enter_sample, new_state, restore_state, saved_state
from .setup_solver import SETUP_STATES
from .solver_agent import StepRecorder


async def solve(
    folder: SampleFolder,
    sandbox: Sandbox,
    endpoint: Endpoint | None,
    model_name: str | None,
    recorder: StepRecorder,
) -> BenchFlowError | None:
    """Run the solver of the task, and put its state into `recorder.meta`; return what failed.

    Call it in an asyncio task of its own. The setup solver has run before.
    """
    try:
        async with _model(endpoint, model_name, recorder) as model:
            await _solve(folder, sandbox, model, recorder)
    except TaskError as error:
        return AgentError(str(error), hint=error.hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's solver
        text = f"the solver failed: {type(error).__name__}: {error}"
        return _cause(error) or AgentError(f"{text:.2000}")
    return None


async def _solve(
    folder: SampleFolder, sandbox: Sandbox, model: Model, recorder: StepRecorder
) -> None:
    task = load_inspect_task(folder.task)
    state = new_state(task, task.dataset[folder.index], folder.index, model)
    before = SETUP_STATES.get(sandbox.id)
    if before is not None:
        restore_state(state, before)
    enter_sample(task, state, model, OpenSandbox(sandbox, "", users=True))
    try:
        async with _active(task, state, folder.index):
            limit, state = await _run(task, state, model)
    except asyncio.CancelledError:
        _record(recorder, sample_state() or state, "time")
        raise
    _record(recorder, state, limit)


def _record(recorder: StepRecorder, state: TaskState, limit: str | None) -> None:
    """Put the state into the last step. A solver without a model gets a step of its own.

    Raises:
        TaskError: The state cannot be recorded.
    """
    recorder.add_results(tool_results(state.messages))
    if recorder.count == 0:
        recorder.add_message(state.output.completion)
    recorder.meta = {STATE_KEY: saved_state(state), "inspect_limit": limit}


def _model(
    endpoint: Endpoint | None, name: str | None, recorder: StepRecorder
) -> AbstractAsyncContextManager[Model]:
    if endpoint is None:
        return nullcontext(get_model("none/none"))
    return gateway_model(name or "model", endpoint, recorder)


async def run_setup(folder: SampleFolder, sandbox: Sandbox) -> dict[str, Any] | BenchFlowError:
    """Run the setup solver of the task; return the state after it, or what failed.

    A setup that calls a model fails, because the rollout has no model before its agent works.
    """
    async with asyncio.TaskGroup() as group:
        # The context variables of Inspect are set in a task, so they are gone after it.
        run = group.create_task(_setup(folder, sandbox))
    return run.result()


async def _setup(folder: SampleFolder, sandbox: Sandbox) -> dict[str, Any] | BenchFlowError:
    try:
        task = load_inspect_task(folder.task)
        model = get_model("none/none")
        state = new_state(task, task.dataset[folder.index], folder.index, model)
        enter_sample(task, state, model, OpenSandbox(sandbox, "", users=True))
        plan = Plan(unroll(task.setup or []), internal=True)
        async with _active(task, state, folder.index):
            state = await plan(state, _generate(task, model))
        return saved_state(state)
    except TaskError as error:
        return EnvironmentError_(str(error), hint=error.hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's solver
        text = f"the setup solver failed: {type(error).__name__}: {error}"
        return _cause(error) or EnvironmentError_(f"{text:.2000}")


@asynccontextmanager
async def _active(task: Task, state: TaskState, index: int) -> AsyncGenerator[None]:
    """Make the sample the running one of this context. Agents such as `react()` need that."""
    sample = task.dataset[index].model_copy(update={"id": state.sample_id})
    # No client attaches to this sample. With this variable, Inspect prepares no events for one.
    _acp_live_active.set(True)
    async with active_sample(
        task=task.name,
        log_location="",
        model=str(state.model),
        sample=sample,
        epoch=state.epoch,
        message_limit=state.message_limit,
        token_limit=state.token_limit,
        cost_limit=state.cost_limit,
        time_limit=task.time_limit,
        working_limit=task.working_limit,
        fails_on_error=True,
        transcript=transcript(),
        eval_id="benchflow",
        sample_uuid=state.uuid,
    ):
        yield


async def _run(task: Task, state: TaskState, model: Model) -> tuple[str | None, TaskState]:
    """Run the solver within the limits of the task; return the limit that ended it."""
    if state.completed:
        return None, state
    solver = copy(task)
    solver.setup = None
    generate = _generate(task, model)
    set_task_generate(generate)
    try:
        with _limits(task, state):
            return None, await resolve_plan(solver, None)(state, generate)
    except LimitExceededError as error:
        return str(error.type), sample_state() or state
    except TerminateSampleError as error:
        return f"terminated: {error}", sample_state() or state


@contextmanager
def _limits(task: Task, state: TaskState) -> Generator[None]:
    with (
        state._token_limit,  # noqa: SLF001 - as Inspect's own runner
        state._cost_limit,  # noqa: SLF001
        state._message_limit,  # noqa: SLF001
        turn_limit(task.turn_limit),
        time_limit(task.time_limit),
        working_limit(task.working_limit),
    ):
        yield


def _generate(task: Task, model: Model) -> Any:  # noqa: ANN401 - Inspect's own protocol
    async def generate(
        state: TaskState,
        tool_calls: Literal["loop", "single", "none"] = "loop",
        **kwargs: Any,  # noqa: ANN401 - settings of Inspect
    ) -> TaskState:
        return await task_generate(
            model=model,
            state=state,
            tool_calls=tool_calls,
            cache=NOT_GIVEN,
            # `merge` copies the whole configuration.
            config=task.config.merge(kwargs) if kwargs else task.config,
        )

    return generate


def _cause(error: BaseException | None) -> BenchFlowError | None:
    """Return the error of BenchFlow that caused `error`."""
    while error is not None:
        if isinstance(error, BenchFlowError):
            return error
        error = error.__cause__
    return None
