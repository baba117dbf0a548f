"""The scorers of an Inspect task, run on a leaf of a tree.

Private functions of inspect-ai 0.3.285, which `tests/foreign/test_inspect_tasks.py` covers:
`scorer._score.init_scoring_context`, `_util.registry.registry_unqualified_name`, and two of
`solver._multiple_choice`. Those of the context are in `sample_run`.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import isfinite
from typing import Any

from benchflow_contracts import (
    Endpoint,
    Evidence,
    LiveWorld,
    RewardError,
    RolloutNode,
    VerifyResult,
)
from benchflow_contracts.scratch import scratch_directory
from inspect_ai import Task
from inspect_ai._util.registry import registry_unqualified_name
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, Model, ModelOutput, get_model
from inspect_ai.scorer import Score, Target
from inspect_ai.scorer._score import init_scoring_context
from inspect_ai.solver import TaskState
from inspect_ai.solver._multiple_choice import (
    parse_answers,
    set_choices_based_on_generated_response,
)

from benchflow_adapters_inspect.export.messages import conversation
from benchflow_adapters_inspect.sandbox.pool import OpenSandbox

from .gateway_model import gateway_model
from .loading import load_inspect_task
from .sample_folder import SampleFolder
from .sample_run import MESSAGES, STATE_KEY, enter_sample, new_state, restore_state
from .setup_solver import SETUP_STATES

_LONGEST_TEXT = 16 * 1024
_MOST_VALUES = 1000
_LOGGER = logging.getLogger(__name__)
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


async def score_leaf(
    folder: SampleFolder,
    node: RolloutNode,
    evidence: Evidence,
    *,
    judge: Endpoint | None,
    judge_model: str | None,
) -> VerifyResult:
    """Run the scorers on the state that the path to `node` makes.

    Raises:
        RewardError: The task has no scorer, a scorer failed, or its value is not a number.
        TaskError: The task cannot be loaded.
    """
    task = load_inspect_task(folder.task)
    if not task.scorer:
        raise RewardError("the task of Inspect has no scorer")
    sample = task.dataset[folder.index]
    async with _model(judge, judge_model, evidence, node.id) as (model, calls):
        async with asyncio.TaskGroup() as group:
            # The context variables of Inspect are set in a task, so they are gone after it.
            run = group.create_task(_scores(task, sample, folder, node, evidence, model))
        scores = run.result()
        count = len(calls())
    if isinstance(scores, RewardError):
        raise scores
    return _verdict(scores, count)


@asynccontextmanager
async def _model(
    judge: Endpoint | None, name: str | None, evidence: Evidence, node: str
) -> AsyncGenerator[tuple[Model, Any]]:
    """Yield the model of the scorers, and its recorded calls."""
    if evidence.judge is not None:
        # The engine's gateway records the calls, and counts them.
        async with gateway_model(evidence.judge.model, evidence.judge.endpoint) as model:
            yield model, tuple
        return
    if judge is None:
        yield get_model("none/none"), tuple
        return
    from benchflow_gateway import HttpGateway  # noqa: PLC0415 - only for a judge

    with scratch_directory("inspect") as scratch:
        record = scratch if evidence.log_dir is None else evidence.log_dir / "model"
        async with HttpGateway(record, kind="same") as gateway:
            route = await gateway.open("scorers", node, upstream=judge)
            async with gateway_model(name or "judge", route.endpoint) as model:
                yield model, route.calls


async def _scores(
    task: Task,
    sample: Sample,
    folder: SampleFolder,
    node: RolloutNode,
    evidence: Evidence,
    model: Model,
) -> list[tuple[str, Score]] | RewardError:
    world = evidence.world
    opened = None
    if world is not None:
        opened = OpenSandbox(world.sandbox, world.provider.name, users=True)
    try:
        state = _state(task, sample, folder, node, model, None if opened is None else world)
    except (KeyError, ValueError) as error:
        return RewardError(f"the state of the solver cannot be read: {error!r:.500}")
    enter_sample(task, state, model, opened)
    init_scoring_context(task.scorer, Target(sample.target))
    results = []
    try:
        for scorer in task.scorer:
            name = registry_unqualified_name(scorer)
            try:
                score = await scorer(state, Target(sample.target))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's scorer
                text = f"{type(error).__name__}: {error}"
                return RewardError(f"the scorer {name!r} failed: {text:.2000}")
            if score is not None and not isinstance(score, Score):
                kind = type(score).__name__
                return RewardError(f"the scorer {name!r} returned a {kind}, and not a score")
            if score is not None:
                results.append((name, score))
    finally:
        if task.cleanup is not None:
            # As in Inspect, a failed cleanup is only logged.
            try:
                await task.cleanup(state)
            except (Exception, SystemExit):
                _LOGGER.exception("the cleanup of the task failed")
    return results


def _state(
    task: Task,
    sample: Sample,
    folder: SampleFolder,
    node: RolloutNode,
    model: Model,
    world: LiveWorld | None,
) -> TaskState:
    """Return the state of a leaf: that of the solver, else the setup's with the agent's messages.

    Raises:
        KeyError: The recorded state is malformed.
        ValueError: The same.
    """
    state = new_state(task, sample, folder.index, model)
    steps = node.steps
    # Only the agent `inspect-solver` writes this key: other agents run in the sandbox.
    recorded = steps[-1].meta.get(STATE_KEY) if steps else None
    if recorded is not None:
        restore_state(state, recorded)
        return state
    setup = None if world is None else SETUP_STATES.get(world.sandbox.id)
    if setup is not None:
        restore_state(state, setup)
    elif task.setup is not None:
        raise ValueError("the setup solver of the task did not run in this sandbox")
    state.messages = MESSAGES.validate_python(conversation(steps, folder.instruction, node.id))
    answers = [each for each in state.messages if isinstance(each, ChatMessageAssistant)]
    if answers:
        state.output = ModelOutput.from_message(answers[-1])
    if sample.choices:
        # The scorer `choice()` reads the marks that the solver `multiple_choice()` sets.
        found = parse_answers(state, multiple_correct=len(Target(sample.target)) > 1)
        set_choices_based_on_generated_response(state, found)
    state.completed = True
    return state


def _verdict(scores: Sequence[tuple[str, Score]], calls: int) -> VerifyResult:
    count = sum(len(score.value) for _, score in scores if isinstance(score.value, list | dict))
    if count > _MOST_VALUES:
        raise RewardError(f"the scorers gave {count} values, more than {_MOST_VALUES}")
    items: dict[str, float] = {}
    first: float | None = None
    for name, score in scores:
        for key, value in _values(name, score.value).items():
            items[key] = value
            first = value if first is None else first
    if first is None:
        raise RewardError("the scorers gave no score")
    reported = {
        name: {
            "value": _short(score.value),
            "answer": _short(score.answer),
            "explanation": _short(score.explanation),
        }
        for name, score in scores
    }
    meta = {"inspect_scores": reported, "scorer_model_calls": calls}
    return VerifyResult(reward=first, items=items, grading="shared", meta=meta)


def _short(value: object) -> object:
    """Return a value, or the start of its text if the text is long."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} [cut]"


def _values(name: str, value: object) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {f"{name}.{key}": _number(f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return {f"{name}.{i}": _number(f"{name}.{i}", each) for i, each in enumerate(value)}
    return {name: _number(name, value)}


def _number(name: str, value: object) -> float:
    """Return a score as a number. Inspect itself takes an unknown word for 0; this does not."""
    word = _WORDS.get(value, _WORDS.get(value.lower())) if isinstance(value, str) else None
    if word is not None:
        return word
    if isinstance(value, bool | int | float | str):
        # An integer may be too large for a float.
        with suppress(ValueError, OverflowError):
            number = float(value)
            if isfinite(number):
                return number
    raise RewardError(f"the score {name!r} is not a number: {value!r:.200}")
