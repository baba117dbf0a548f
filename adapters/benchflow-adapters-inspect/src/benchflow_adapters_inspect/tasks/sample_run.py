"""The state of one sample in Inspect, and the context in which its solvers and scorers run.

Private functions of inspect-ai 0.3.285, which `tests/foreign/test_inspect_tasks.py` covers:
`_eval.context.init_task_context`, `_eval.task.util.sample_messages`,
`log._transcript.init_transcript`, the context variables of `util._sandbox.context`,
`util._store.init_subtask_store`, `solver._task_state.set_sample_state`, `Choice` and `Store`.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from benchflow_contracts import TaskError
from inspect_ai import Task
from inspect_ai._eval.context import init_task_context
from inspect_ai._eval.task.util import sample_messages
from inspect_ai.dataset import Sample
from inspect_ai.log._transcript import Transcript, init_transcript
from inspect_ai.model import ChatMessage, Model, ModelOutput
from inspect_ai.model._model import ModelName
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState
from inspect_ai.solver._task_state import Choice, Choices, set_sample_state
from inspect_ai.util._sandbox.context import (
    sandbox_default_context_var,
    sandbox_environments_context_var,
    sandbox_with_environments_context_var,
)
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
from inspect_ai.util._store import Store, init_subtask_store
from pydantic import TypeAdapter

from benchflow_adapters_inspect.sandbox.environment import BenchflowSandboxEnvironment
from benchflow_adapters_inspect.sandbox.pool import OpenSandbox

STATE_KEY: Final = "inspect_state"
"""The key of a state in the `meta` of the last step of a solver."""
MOST_STATE: Final = 8 * 1024 * 1024
"""Characters of a state as JSON."""

MESSAGES: TypeAdapter[list[ChatMessage]] = TypeAdapter(list[ChatMessage])
_ANY: TypeAdapter[Any] = TypeAdapter(Any)

Json = dict[str, Any]


def new_state(task: Task, sample: Sample, index: int, model: Model) -> TaskState:
    """Return the state at the beginning of a sample, with the limits of its task."""
    sample = deepcopy(sample)
    return TaskState(
        model=ModelName(model),
        sample_id=index + 1 if sample.id is None else sample.id,
        epoch=1,
        input=sample.input,
        messages=sample_messages(sample),
        target=Target(sample.target),
        choices=sample.choices,
        message_limit=task.message_limit,
        token_limit=task.token_limit,
        token_limit_type=getattr(task, "token_limit_type", None) or "all",
        cost_limit=task.cost_limit,
        metadata=dict(sample.metadata or {}),
    )


def saved_state(state: TaskState) -> Json:
    """Return what solvers changed, as JSON.

    Raises:
        TaskError: A part of the state cannot be written as JSON, or the state is too large.
    """
    parts = {
        "messages": list(state.messages),
        "output": state.output,
        "metadata": state.metadata,
        "store": dict(state.store.items()),
        "choices": [vars(each) for each in state.choices],
        "completed": state.completed,
    }
    saved: Json = {}
    total = 0
    for name, part in parts.items():
        try:
            saved[name] = _ANY.dump_python(part, mode="json", exclude_none=True)
            total += len(json.dumps(saved[name], allow_nan=False))
        except (ValueError, RecursionError) as error:
            raise TaskError(
                f"{name!r} of the sample's state cannot be recorded: {error}"
            ) from error
    if total > MOST_STATE:
        raise TaskError(f"the sample's state has {total} characters, more than {MOST_STATE}")
    return saved


def restore_state(state: TaskState, saved: Mapping[str, Any]) -> None:
    """Set the parts of `state` that solvers changed."""
    state.messages = MESSAGES.validate_python(saved["messages"])
    state.output = ModelOutput.model_validate(saved["output"])
    state.metadata = dict(saved["metadata"])
    state.choices = Choices([Choice(**{"correct": None, **each}) for each in saved["choices"]])
    state.completed = bool(saved["completed"])
    for key, value in saved["store"].items():
        state.store.set(key, value)


def enter_sample(task: Task, state: TaskState, model: Model, opened: OpenSandbox | None) -> None:
    """Set Inspect's context variables. Call it in an asyncio task of its own.

    Every role of the task's `model_roles` is `model`.
    """
    roles: dict[str, Any] = dict.fromkeys(task.model_roles or {}, model)
    init_task_context(model, roles, config=task.config)
    init_transcript(Transcript())
    store: Store = state.store
    init_subtask_store(store)
    set_sample_state(state)
    if opened is None:
        sandbox_environments_context_var.set({})
        return
    environment = SandboxEnvironmentProxy(BenchflowSandboxEnvironment(opened))
    sandbox_environments_context_var.set({"default": environment})
    sandbox_with_environments_context_var.set({})
    sandbox_default_context_var.set("default")
